/** What Grafana's server writes into its page; must be loaded before any of Grafana's packages. */

const theme = new URLSearchParams(window.location.search).get('theme') ?? 'dark';

Object.assign(window, {
  grafanaBootData: {
    assets: { dark: '', light: '' },
    settings: { buildInfo: { version: '13.2.3', commit: '', env: 'production' }, featureToggles: {} },
    user: { theme, lightTheme: theme === 'light', timezone: 'utc', locale: 'en-US', language: 'en-US' },
    navTree: [],
  },
  __grafana_public_path__: 'public/',
});
