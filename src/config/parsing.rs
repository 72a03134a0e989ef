//! Reading a configuration from options by name.

use super::nearest::nearest;
use super::options::{OPTIONS, OptionSpec};
use super::{Config, OptionValue};
use crate::error::ConfigError;
use crate::lock::current_boot;

impl Config {
    /// Reads options by name; what is not given has its default.
    ///
    /// # Errors
    /// `ConfigError` for an unknown name (with the list of those that exist), a value that does not fit, or a
    /// missing required option.
    pub fn from_options(
        options: impl IntoIterator<Item = (String, OptionValue)>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self { boot: current_boot(), ..Self::defaults() };
        let mut given = Vec::new();
        for (name, value) in options {
            let spec = OptionSpec::named(&name).ok_or_else(|| unknown(name))?;
            spec.set(&mut config, &value)?;
            given.push(spec.name);
        }
        let names = OPTIONS.iter().filter(|spec| spec.default().is_none()).map(|spec| spec.name);
        let names: Vec<_> = names.filter(|name| !given.contains(name)).collect();
        if !names.is_empty() {
            return Err(ConfigError::Missing { names });
        }
        if let [one_for_all] = config.capacities_bytes[..] {
            config.capacities_bytes = vec![one_for_all; config.paths.len()];
        }
        let (paths, capacities) = (config.paths.len(), config.capacities_bytes.len());
        if paths != capacities {
            return Err(ConfigError::Capacities { paths, capacities });
        }
        Ok(config)
    }
}

fn unknown(name: String) -> ConfigError {
    ConfigError::Unknown {
        nearest: nearest(&name, OPTIONS.iter().map(|spec| spec.name)),
        known: OPTIONS.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", "),
        name,
    }
}
