//! What a `--model` means: rules, or a file system that runs.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::kernel::Kernel;
use crate::model::Model;
use crate::scheme::Scheme;
use crate::system::System;

/// The meaning of a `--model`.
#[derive(Clone, Debug)]
pub enum Under {
    /// Rules over the recorded calls.
    Rules(Model),
    /// A file system that runs.
    System(Arc<dyn System>),
}

impl fmt::Display for Under {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(model) => fmt::Display::fmt(model, f),
            Self::System(system) => fmt::Display::fmt(system, f),
        }
    }
}

impl FromStr for Under {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let no_model = match name.parse() {
            Ok(model) => return Ok(Self::Rules(model)),
            Err(no_model) => no_model,
        };
        if Kernel::is_named(name) {
            return Ok(Self::System(Arc::new(name.parse::<Kernel>()?)));
        }
        match name.parse::<Scheme>() {
            Ok(scheme) => Ok(Self::System(Arc::new(scheme))),
            Err(no_scheme) => Err(format!("{no_model}; {no_scheme}")),
        }
    }
}
