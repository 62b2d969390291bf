// Playwright's WebDriver BiDi asks for emulated media features, which Firefox ESR does not know yet.
// Loaded into Playwright's driver, this turns the request into one that does nothing.

const { stringify } = JSON;
JSON.stringify = (value, ...rest) =>
  stringify(value?.method === "emulation.setMediaFeaturesOverride" ? { ...value, method: "session.status", params: {} } : value, ...rest);
