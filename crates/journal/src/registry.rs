//! The list of schemes. It is the only one: the command line, the documents, the tests and the lab
//! read it.

use crate::error::{JournalError, Result};
use crate::scheme::{About, OpenArgs, OptionAbout, RecoveryReport, Scheme};
use crate::schemes;

/// What opening a scheme gives.
pub type Opened = (Box<dyn Scheme>, RecoveryReport);

/// A scheme as the registry knows it.
pub struct Registration {
    /// What it says of itself.
    pub about: &'static About,
    /// Formats or recovers, idempotently, and makes the scheme.
    pub open: fn(OpenArgs) -> Result<Opened>,
}

/// All schemes, in the order in which people should see them.
pub static SCHEMES: &[Registration] = &[
    Registration {
        about: &schemes::jbd2::ABOUT,
        open: schemes::jbd2::open,
    },
    Registration {
        about: &schemes::shortcut::ABOUT,
        open: schemes::shortcut::open,
    },
    Registration {
        about: &schemes::jftl::ABOUT,
        open: schemes::jftl::open,
    },
    Registration {
        about: &schemes::dj::ABOUT,
        open: schemes::dj::open,
    },
    Registration {
        about: &schemes::ubj::ABOUT,
        open: schemes::ubj::open,
    },
    Registration {
        about: &schemes::tinca::ABOUT,
        open: schemes::tinca::open,
    },
    Registration {
        about: &schemes::spindle::ABOUT,
        open: schemes::spindle::open,
    },
    Registration {
        about: &schemes::null::ABOUT,
        open: schemes::null::open,
    },
    #[cfg(feature = "testing")]
    Registration {
        about: &schemes::relocate_all::ABOUT,
        open: schemes::relocate_all::open,
    },
];

/// The option of that name that some scheme has.
pub fn find_option(name: &str) -> Option<&'static OptionAbout> {
    let mut options = SCHEMES.iter().flat_map(|scheme| scheme.about.options);
    options.find(|option| option.name == name).copied()
}

/// The scheme called `name`.
pub fn find(name: &str) -> Result<&'static Registration> {
    SCHEMES
        .iter()
        .find(|scheme| scheme.about.name == name)
        .ok_or_else(|| JournalError::UnknownScheme(name.to_owned()))
}
