//! The list of schemes. It is the only one: the command line, the documents, the tests and the lab
//! read it.

use stetfs_scheme::{OptionAbout, Registration, Result, SchemeError};

/// All schemes, in the order in which people should see them.
pub static SCHEMES: &[Registration] = &[
    Registration {
        about: &crate::jbd2::ABOUT,
        make: crate::jbd2::open,
    },
    Registration {
        about: &crate::shortcut::ABOUT,
        make: crate::shortcut::open,
    },
    Registration {
        about: &crate::jftl::ABOUT,
        make: crate::jftl::open,
    },
    Registration {
        about: &crate::dj::ABOUT,
        make: crate::dj::open,
    },
    Registration {
        about: &crate::ubj::ABOUT,
        make: crate::ubj::open,
    },
    Registration {
        about: &crate::tinca::ABOUT,
        make: crate::tinca::open,
    },
    Registration {
        about: &crate::spindle::ABOUT,
        make: crate::spindle::open,
    },
    Registration {
        about: &crate::null::ABOUT,
        make: crate::null::open,
    },
    #[cfg(feature = "testing")]
    Registration {
        about: &crate::relocate_all::ABOUT,
        make: crate::relocate_all::open,
    },
    #[cfg(feature = "testing")]
    Registration {
        about: &crate::template::ABOUT,
        make: crate::template::open,
    },
    #[cfg(feature = "testing")]
    Registration {
        about: &crate::shadow::ABOUT,
        make: crate::shadow::open,
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
        .ok_or_else(|| SchemeError::Unknown(name.to_owned()))
}
