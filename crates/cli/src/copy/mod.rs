//! `stetfs cp`: copies between trees, whichever of them is an image.
//!
//! As with cp(1), a file that cannot be copied is named and left out, the rest is copied, and the
//! exit code says that something is missing. This file decides where copies go; `job.rs` has what
//! becomes of one file, `content.rs` how its bytes get there. docs/COMMANDS.md has the rules case
//! by case, and `tests/cli/as_coreutils` compares them with cp(1).

mod content;
mod host;
mod job;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::args::{Cp, PartArgs};
use crate::failure::{Explain, Failure, Result};
use crate::identity;
use crate::image::Volume;
use crate::mounts;
use crate::owners::Owners;
use crate::part;
use crate::place::{self, Place};
use crate::progress;
use crate::tree::{FileKind, Item, Stamp, Tree};
pub(crate) use host::Host;
use job::{HostId, Job, Left, Target, Times};

pub(crate) fn run(args: &Cp) -> Result<()> {
    let (target, sources) = args
        .places
        .split_last()
        .ok_or_else(|| Failure::new("nothing to copy"))?;
    args.owners.check(args.archive)?;
    let trees = Trees::open(args)?;
    more_descriptors();
    let left = copy_all(args, &trees, target, sources);
    trees.close()?;
    left?.into_result()
}

/// Copies the sources; returns what was left out.
fn copy_all(args: &Cp, trees: &Trees, target: &Place, sources: &[Place]) -> Result<Left> {
    let to = trees.of(target);
    let path = path_of(target);
    let is_dir = |item: &dyn Item| Ok::<_, Failure>(item.meta()?.kind == FileKind::Dir);
    let there = to.at(path, true).during(|| target.to_string())?;
    let into = match there {
        Some(item) if is_dir(&*item)? => Some(item),
        _ => None,
    };
    if into.is_none() && sources.len() > 1 {
        return Err(Failure::new(format!("{target} is not a directory"))
            .advise("several files can only be copied into a directory that exists"));
    }
    // Where the copies go: the directory, its path, and the copy's name if it differs from the
    // original's.
    let gone = || Failure::new(format!("{target}: no such file or directory"));
    let (top, dir_path, name) = match into {
        Some(dir) => (dir, path.to_vec(), None),
        None => {
            let (mut dir_path, name) = place::split_last(path).ok_or_else(gone)?;
            if dir_path.is_empty() {
                dir_path.push(b'.');
            }
            let dir = to.at(&dir_path, true)?;
            let dir = dir.filter(|item| is_dir(&**item).unwrap_or(false));
            (dir.ok_or_else(gone)?, dir_path, Some(name))
        }
    };
    let way = match target {
        Place::Host(_) => mounts::resolved(Path::new(OsStr::from_bytes(&dir_path)))
            .into_os_string()
            .into_vec(),
        Place::Image { .. } => dir_path,
    };
    let place = Target {
        dir: &*top,
        // Resolve links and `..` on this machine, so that the directories above are known.
        path: way,
        name,
        must_be_dir: path.ends_with(b"/"),
    };
    let mut job = Job::new(args, place, trees.images(), bar(args.quiet));
    if to.is_image()
        && let Some(latest) = identity::latest()?
    {
        job.set_times(Times::Settled(Some(latest)));
    }
    for (n, source) in sources.iter().enumerate() {
        let from = trees.of(source);
        let path = path_of(source);
        if sources[..n].contains(source) {
            job.say(format!("{source} is given twice; it is copied once"));
            continue;
        }
        let same = trees.same(source, target).then_some(to);
        if let Err(e) = job.copy_source(from, path, same) {
            job.leave_out(e.context(from.shown(path)));
        }
    }
    Ok(job.end())
}

/// A directory of a volume that a whole tree goes into.
pub(crate) struct Destination<'a> {
    pub(crate) volume: &'a Volume,
    pub(crate) path: &'a [u8],
    /// The file that holds the volume.
    pub(crate) image: &'a Path,
    pub(crate) owners: &'a Owners,
    pub(crate) quiet: bool,
    /// Files that exist are replaced, as by tar(1), and not written into.
    pub(crate) replaces: bool,
}

/// Copies what is in the directory at `path` into a directory of a volume, with all attributes.
/// Times are those of `repeatable::times`.
pub(crate) fn fill(
    from: &dyn Tree,
    path: &[u8],
    to: &Destination<'_>,
    latest: Option<Stamp>,
) -> Result<()> {
    let args = Cp {
        places: Vec::new(),
        recursive: true,
        archive: true,
        no_clobber: false,
        owners: to.owners.clone(),
        quiet: to.quiet,
        part: PartArgs::default(),
    };
    more_descriptors();
    let dir = to.volume.at(to.path, true)?;
    let dir = dir.ok_or_else(|| Failure::new("no such directory"))?;
    let place = Target {
        dir: &*dir,
        path: to.path.to_vec(),
        name: None,
        must_be_dir: true,
    };
    let id = part::file_of(to.image)
        .metadata()
        .map(|meta| (meta.dev(), meta.ino()));
    let images = id.into_iter().collect();
    let mut job = Job::new(&args, place, images, bar(to.quiet));
    job.set_times(Times::Settled(latest));
    if to.replaces {
        job.replace();
    }
    let copied = job.copy_source(from, path, None);
    let left = job.end();
    copied.map_err(|e| e.context(from.shown(path)))?;
    left.into_result()
}

/// Raises the limit of descriptors: one is open for each directory on the way down.
fn more_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let more = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // If that is not allowed, deep trees end with "too many open files".
    let _ = setrlimit(Resource::Nofile, more);
}

fn path_of(place: &Place) -> &[u8] {
    match place {
        Place::Host(path) => path.as_os_str().as_bytes(),
        Place::Image { path, .. } => path,
    }
}

/// The trees of one command: its images, each mounted once, and this machine.
struct Trees {
    host: Host,
    volumes: HashMap<PathBuf, Volume>,
}

impl Trees {
    fn open(args: &Cp) -> Result<Self> {
        let target = args.places.last().and_then(image_of);
        let mut volumes = HashMap::new();
        for place in &args.places {
            let Place::Image { image, .. } = place else {
                continue;
            };
            let key = mounts::resolved(image);
            let writable = Some(&key) == target.as_ref();
            if let Entry::Vacant(slot) = volumes.entry(key) {
                slot.insert(Volume::open(image, writable)?);
            }
        }
        if volumes.is_empty() {
            return Err(Failure::new("none of these places is in an image")
                .advise(
                    "write places in images as IMAGE:/PATH, with an IMAGE that exists; between \
                    host paths use cp(1)",
                )
                .exit(2));
        }
        Ok(Self {
            host: Host,
            volumes,
        })
    }

    fn of(&self, place: &Place) -> &dyn Tree {
        match image_of(place).and_then(|image| self.volumes.get(&image)) {
            Some(volume) => volume,
            None => &self.host,
        }
    }

    fn same(&self, a: &Place, b: &Place) -> bool {
        image_of(a) == image_of(b)
    }

    /// Returns the files of this machine that hold the images; the copy must not touch them.
    fn images(&self) -> Vec<HostId> {
        let ids = self
            .volumes
            .keys()
            .filter_map(|image| part::file_of(image).metadata().ok());
        ids.map(|meta| (meta.dev(), meta.ino())).collect()
    }

    fn close(self) -> Result<()> {
        self.volumes.into_values().try_for_each(Volume::close)
    }
}

fn image_of(place: &Place) -> Option<PathBuf> {
    match place {
        Place::Host(_) => None,
        Place::Image { image, .. } => Some(mounts::resolved(image)),
    }
}

fn bar(quiet: bool) -> ProgressBar {
    progress::bar(progress::BYTES_OF, Some(0), quiet)
}
