//! Which scheme a mount takes, and with which mode and options.
//!
//! The first that applies decides:
//! 1. the options of the mount;
//! 2. the scheme that alone can read the newest content;
//! 3. the mount options that the volume itself carries, a list in `s_mount_opts` of its superblock
//!    (`tune2fs -E mount_opts=`; the kernel's documentation of ext4, "Super Block"). Only
//!    `scheme=`, `data=` and options of the scheme are taken from it; the others are for the
//!    kernel.

use stetfs_format::Superblock;
use stetfs_scheme::{About, DataMode, Registration, SchemeOptions};
use stetfs_schemes::find;

use super::error::MountError;
use crate::error::Result;
use crate::options::{MountOptions, SCHEME_DEFAULT};

/// The facts of the volume and the mount that decide the scheme.
pub(super) struct Found<'a> {
    /// The scheme that alone can read the newest content.
    pub(super) owner: Option<&'a str>,
    /// JBD2's journal must be replayed.
    pub(super) dirty: bool,
    pub(super) has_journal: bool,
    pub(super) read_only: bool,
}

pub(super) struct Choice {
    pub(super) scheme: &'static Registration,
    pub(super) options: SchemeOptions,
}

pub(super) fn choose(
    opts: &MountOptions,
    sb: &Superblock,
    found: &Found<'_>,
    warnings: &mut Vec<String>,
) -> Result<Choice> {
    let of_volume = OfVolume::of(sb);
    let take = |name: &str| {
        let scheme = find_for(name, found, opts.noload)?;
        take(scheme, opts, sb, &of_volume)
    };
    let choice = match (&of_volume.scheme, found.owner) {
        _ if opts.names_scheme() || opts.noload => take(&opts.scheme)?,
        (_, Some(owner)) => take(owner)?,
        (None, None) => take(&opts.scheme)?,
        (Some(name), None) => {
            let why = match find(name) {
                Err(e) => e.to_string(),
                Ok(_) => {
                    let choice = take(name)?;
                    if !found.dirty || choice.can_replay() {
                        return Ok(choice);
                    }
                    "its journal needed a recovery that this cannot do".to_owned()
                }
            };
            warnings.push(format!(
                "mounted with scheme={SCHEME_DEFAULT}, not with the volume's own scheme={name}: \
                    {why}"
            ));
            take(SCHEME_DEFAULT)?
        }
    };
    if found.dirty && !choice.can_replay() {
        let scheme = choice.scheme.about.name;
        return Err(MountError::ForeignRecovery { scheme }.into());
    }
    Ok(choice)
}

impl Choice {
    /// Whether this choice can replay JBD2's journal.
    fn can_replay(&self) -> bool {
        self.scheme.about.is_jbd2(&self.options)
    }
}

/// Returns the scheme with its mode and options.
fn take(
    scheme: &'static Registration,
    opts: &MountOptions,
    sb: &Superblock,
    of_volume: &OfVolume,
) -> Result<Choice> {
    let about = scheme.about;
    let data = choose_mode(about, opts, sb, of_volume)?;
    let extra = of_volume.options_for(about).chain(&opts.scheme_options);
    let options = SchemeOptions {
        data,
        extra: extra.cloned().collect(),
    };
    // The scheme checks their values when it opens, before it writes.
    options.check_known(about)?;
    Ok(Choice { scheme, options })
}

/// Returns the scheme named `name`. If it needs a journal and there is none, a mount that only
/// reads or leaves the journal alone (`noload`) gets scheme `null`.
fn find_for(name: &str, on: &Found<'_>, noload: bool) -> Result<&'static Registration> {
    let found = find(name)?;
    if found.about.needs_journal_area && !on.has_journal {
        if !on.read_only && !noload {
            let scheme = found.about.name;
            return Err(MountError::NoJournal { scheme }.into());
        }
        return Ok(find("null")?);
    }
    Ok(found)
}

/// Returns `data=` of the mount, else of the volume's own options, else the volume's default mode
/// (`tune2fs -o journal_data`), else the scheme's.
fn choose_mode(
    about: &'static About,
    opts: &MountOptions,
    sb: &Superblock,
    of_volume: &OfVolume,
) -> Result<Option<DataMode>> {
    /// `EXT4_DEFM_JMODE`: 1 data, 2 ordered, 3 writeback.
    const JMODE_SHIFT: u32 = 5;
    let find = |name: &str| about.modes.iter().copied().find(|m| m.name() == name);
    if let Some(name) = &opts.data {
        return find(name).map(Some).ok_or_else(|| {
            MountError::DataMode {
                scheme: about.name,
                mode: name.clone(),
            }
            .into()
        });
    }
    let carried = of_volume.data.as_deref().and_then(find);
    let wanted = carried.or_else(|| match sb.default_mount_opts >> JMODE_SHIFT & 3 {
        1 => find("journal"),
        2 => find("ordered"),
        3 => find("writeback"),
        _ => None,
    });
    Ok(wanted.or(about.modes.first().copied()))
}

/// The mount options that the volume itself carries.
struct OfVolume {
    scheme: Option<String>,
    data: Option<String>,
    scheme_options: Vec<(String, String)>,
}

impl OfVolume {
    fn of(sb: &Superblock) -> Self {
        let text = sb.mount_opts.split(|byte| *byte == 0).next();
        let text = String::from_utf8_lossy(text.unwrap_or_default());
        let mut options = MountOptions::default();
        for option in text.split(',').map(str::trim) {
            // An option unknown here is for the kernel.
            let _ = options.apply(option);
        }
        Self {
            scheme: options.scheme_named.then_some(options.scheme),
            data: options.data,
            scheme_options: options.scheme_options,
        }
    }

    /// Returns those of the volume's options that the scheme has.
    fn options_for(&self, about: &About) -> impl Iterator<Item = &(String, String)> {
        let is_known = |name: &str| about.options.iter().any(|option| option.name == name);
        self.scheme_options
            .iter()
            .filter(move |(name, _)| is_known(name))
    }
}
