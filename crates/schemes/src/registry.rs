//! The list of schemes, and the only one. The command line, the documents, the tests and the lab
//! read it; a scheme's row also has the trials in which tests run it.

use stetfs_scheme::{OptionAbout, Registration, Result, SchemeError};

/// Calls a macro with the names of all schemes for use, in the order in which people should see
/// them. Tests use it to make one test per scheme, with the scheme's name.
#[macro_export]
macro_rules! each_scheme {
    ($call:ident) => {
        $call! { jbd2 stet shortcut jftl dj ubj tinca spindle null }
    };
}

/// Calls a macro with the names of the examples, which are schemes like others, but for tests.
#[cfg(feature = "testing")]
#[macro_export]
macro_rules! each_example {
    ($call:ident) => {
        $call! { template shadow }
    };
}

macro_rules! registry {
    ($($scheme:ident)*) => {
        /// All schemes: first those for use, in the order of `each_scheme`, then those for tests.
        pub static SCHEMES: &[Registration] = &[
            $(crate::$scheme::ROW,)*
            #[cfg(feature = "testing")]
            crate::relocate_all::ROW,
            #[cfg(feature = "testing")]
            crate::template::ROW,
            #[cfg(feature = "testing")]
            crate::shadow::ROW,
        ];

        /// Returns the schemes for use, without those for tests.
        pub fn for_use() -> &'static [Registration] {
            &SCHEMES[..[$(stringify!($scheme)),*].len()]
        }
    };
}

each_scheme!(registry);

/// Returns the option called `name` of any scheme; `None` if no scheme has it.
pub fn find_option(name: &str) -> Option<&'static OptionAbout> {
    let mut options = SCHEMES.iter().flat_map(|scheme| scheme.about.options);
    options.find(|option| option.name == name).copied()
}

/// Returns the scheme called `name`.
pub fn find(name: &str) -> Result<&'static Registration> {
    SCHEMES
        .iter()
        .find(|scheme| scheme.about.name == name)
        .ok_or_else(|| SchemeError::Unknown(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use stetfs_scheme::{About, Beside, Ground, InMemory, Trial};

    use super::*;

    fn trials() -> impl Iterator<Item = (&'static About, &'static Trial)> {
        let of = |scheme: &'static Registration| scheme.trials.iter().map(|t| (scheme.about, t));
        SCHEMES.iter().flat_map(of)
    }

    #[test]
    fn each_trial_has_its_name() {
        let mut names = HashSet::new();
        for (about, trial) in trials() {
            assert!(trial.name.starts_with(about.name), "{trial}");
            assert!(names.insert(trial.name), "{trial} twice");
        }
    }

    #[test]
    fn each_trial_is_on_a_ground_for_its_scheme() {
        for (about, trial) in trials() {
            let remaps = matches!(trial.ground, Ground::Flash | Ground::Reflink);
            match about.in_memory {
                InMemory::Never => assert_ne!(trial.ground, Ground::Memory, "{trial}"),
                InMemory::Only => assert_eq!(trial.ground, Ground::Memory, "{trial}"),
                InMemory::Too => {}
            }
            assert!(remaps || !about.needs_remap, "{trial}");
            match about.nvm {
                Beside::Never => assert!(!trial.ground.has_nvm(), "{trial}"),
                Beside::Only(_) => assert!(trial.ground.has_nvm(), "{trial}"),
                Beside::Too(_) => {}
            }
            assert_eq!(about.caches, trial.ground == Ground::NvmCache, "{trial}");
        }
    }

    /// The trials cover each mode, and of each option every value that is a word, or else one value
    /// other than the default.
    #[test]
    fn everything_that_can_be_chosen_is_in_a_trial() {
        for scheme in SCHEMES {
            let about = scheme.about;
            let modes: HashSet<_> = scheme.trials.iter().filter_map(|t| t.parts().0).collect();
            let all: HashSet<_> = about.modes.iter().map(|mode| mode.name()).collect();
            assert_eq!(modes, all, "{}", about.name);
            let given: Vec<_> = scheme.trials.iter().flat_map(|t| t.parts().1).collect();
            let known: HashSet<_> = about.options.iter().map(|option| option.name).collect();
            for option in &given {
                let name = option.split('=').next().unwrap_or(option);
                assert!(known.contains(name), "{}: {option}", about.name);
            }
            for option in about.options {
                let (name, default) = (option.name, option.default);
                let values: Vec<_> = given
                    .iter()
                    .filter_map(|one| match one.split_once('=') {
                        Some((its, value)) => (its == name).then_some(value),
                        None => (*one == name).then_some("on"),
                    })
                    .collect();
                if option.syntax.chars().all(|c| !c.is_uppercase()) {
                    for value in option.syntax.split('|').filter(|value| *value != default) {
                        assert!(values.contains(&value), "{}: {name}={value}", about.name);
                    }
                } else {
                    assert!(!values.is_empty(), "{}: {name}", about.name)
                }
            }
        }
    }
}
