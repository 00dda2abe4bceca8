//! `stetfs cp`: copies between trees, whichever of them is an image.
//!
//! As cp(1): what cannot be copied is told and left out, the rest is copied, and the exit code says
//! that something was left out. Attributes are set when a file's content (a directory's entries) is
//! complete, because writing changes times.

mod host;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stetfs_format::width::{u64_as_usize, usize_as_u64};

use crate::args::Cp;
use crate::failure::{DAMAGED, Explain, Failure, Result};
use crate::image::Volume;
use crate::mounts;
use crate::place::{self, Place};
use crate::shown::shown;
use crate::tree::{FileKind, Item, Meta, Tree, Walk, descend, shown_below};
use host::Host;

/// How much is read and written at once.
const CHUNK: usize = 1 << 20;

pub(crate) fn run(args: &Cp) -> Result<()> {
    let (target, sources) = args
        .places
        .split_last()
        .ok_or_else(|| Failure::new("nothing to copy"))?;
    let trees = Trees::open(args)?;
    more_descriptors();
    let failed = copy_all(args, &trees, target, sources);
    trees.close()?;
    match failed? {
        0 => Ok(()),
        1 => Err(Failure::new("1 file was not copied")),
        n => Err(Failure::new(format!("{n} files were not copied"))),
    }
}

/// Copies the sources; gives how many files were not copied.
fn copy_all(args: &Cp, trees: &Trees, target: &Place, sources: &[Place]) -> Result<u32> {
    let to = trees.of(target);
    let path = path_of(target);
    let there = to.at(path, true)?;
    let is_dir = |item: &dyn Item| Ok::<_, Failure>(item.meta()?.kind == FileKind::Dir);
    let into = there.map(|item| Ok::<_, Failure>((is_dir(&*item)?, item)));
    let into = into
        .transpose()?
        .and_then(|(is_dir, item)| is_dir.then_some(item));
    if into.is_none() && (sources.len() > 1 || path.ends_with(b"/")) {
        return Err(Failure::new(format!("{target} is not a directory"))
            .advise("several files can only be copied into a directory that exists"));
    }
    // Where the copies go: the directory, its path, and the name of the copy if it is not the
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
    // On this machine without links and `..`, so that the directories above it can be told.
    let place = match target {
        Place::Host(_) => mounts::resolved(Path::new(OsStr::from_bytes(&dir_path)))
            .into_os_string()
            .into_vec(),
        Place::Image { .. } => dir_path,
    };
    let mut job = Job {
        args,
        top: &*top,
        links: HashMap::new(),
        buffer: vec![0; CHUNK],
        bar: progress(args),
        failed: 0,
    };
    for source in sources {
        let from = trees.of(source);
        let path = path_of(source);
        let name = name.clone().unwrap_or_else(|| name_of(source));
        let same = trees.same(source, target).then_some((to, &*place));
        if let Err(e) = job.copy_source(from, path, &name, same) {
            job.tell(e.context(from.shown(path)));
        }
    }
    job.bar.finish_and_clear();
    Ok(job.failed)
}

/// A descriptor is open for each directory on the way down: as many as this process may have.
fn more_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let more = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Where that is not allowed, deep trees end with "too many open files".
    let _ = setrlimit(Resource::Nofile, more);
}

/// The name that a source gets in a target directory; `.` when it has none of its own, and its
/// content is meant.
fn name_of(place: &Place) -> Vec<u8> {
    let own = match place {
        Place::Host(path) if path.file_name().is_none() => {
            let real = mounts::resolved(path);
            real.file_name().map(|name| name.as_bytes().to_vec())
        }
        _ => place::split_last(path_of(place)).map(|(_, name)| name),
    };
    own.unwrap_or_else(|| b".".to_vec())
}

fn path_of(place: &Place) -> &[u8] {
    match place {
        Place::Host(path) => path.as_os_str().as_bytes(),
        Place::Image { path, .. } => path,
    }
}

/// The images of one command, each mounted once, and the host.
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

/// A bar on a terminal, and nothing elsewhere.
fn progress(args: &Cp) -> ProgressBar {
    if args.quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    }
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template(
        "{bytes:>10} of {total_bytes} {bar:30} {bytes_per_sec} {wide_msg}",
    );
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

struct Job<'a> {
    args: &'a Cp,
    /// The directory into which everything is copied.
    top: &'a dyn Item,
    /// The ways from there to where the first name of each file with several names went.
    links: HashMap<(u64, u64), Vec<Vec<u8>>>,
    buffer: Vec<u8>,
    bar: ProgressBar,
    failed: u32,
}

/// What is known of a source while it is copied.
struct Origin {
    /// It is in the tree that the copy goes to.
    same_tree: bool,
    walk: Walk,
    /// What all its files together can hold.
    capacity: u64,
    /// What those can that are yet to come.
    left: u64,
    /// Files with several names that were counted.
    counted: HashSet<(u64, u64)>,
}

impl Job<'_> {
    /// Copies what a place of the command line names. `same`: the tree and the path of the target,
    /// when the source is in it.
    fn copy_source(
        &mut self,
        from: &dyn Tree,
        path: &[u8],
        name: &[u8],
        same: Option<(&dyn Tree, &[u8])>,
    ) -> Result<()> {
        // As cp: a link named on the command line is followed unless the copy is recursive.
        let item = from
            .at(path, !self.recursive())?
            .ok_or_else(|| Failure::new("no such file or directory"))?;
        let meta = item.meta()?;
        if meta.kind == FileKind::Dir && self.recursive() {
            if let Some((tree, target)) = same
                && is_below(tree, target, meta.id)?
            {
                return Err(Failure::new("cannot be copied into itself"));
            }
            if !self.bar.is_hidden() {
                self.count(&mut Walk::new(from), &*item, None);
            }
        } else {
            self.bar.inc_length(meta.size);
        }
        let capacity = from.capacity()?;
        let mut origin = Origin {
            same_tree: same.is_some(),
            walk: Walk::new(from),
            capacity,
            left: capacity,
            counted: HashSet::new(),
        };
        if name == b"." && meta.kind == FileKind::Dir && self.recursive() {
            origin.walk.enter(&*item, None)?;
            return self.copy_dir(&mut origin, &*item, self.top, name, Some(self.top));
        }
        self.copy_one(&mut origin, &*item, None, self.top, name)
    }

    /// Adds what is to come to the bar's length; what is wrong is told when it is copied.
    fn count(&self, walk: &mut Walk, item: &dyn Item, parent: Option<&dyn Item>) {
        let Ok(meta) = item.meta() else { return };
        self.bar.inc_length(meta.size);
        if meta.kind != FileKind::Dir || walk.enter(item, parent).is_err() {
            return;
        }
        for name in item.names().unwrap_or_default() {
            if let Ok(Some(child)) = item.child(&name) {
                self.count(walk, &*child, Some(item));
            }
        }
        walk.leave();
    }

    fn recursive(&self) -> bool {
        self.args.recursive || self.args.archive
    }

    /// Tells what was not copied.
    fn tell(&mut self, failure: Failure) {
        self.failed += 1;
        self.bar.suspend(|| eprintln!("stetfs: {failure}"));
    }

    /// Copies `item`, which was found in `parent`, as `name` into `to`.
    fn copy_one(
        &mut self,
        origin: &mut Origin,
        item: &dyn Item,
        parent: Option<&dyn Item>,
        to: &dyn Item,
        name: &[u8],
    ) -> Result<()> {
        let shown = || shown_below(to, name);
        let meta = item.meta()?;
        let there = to.child(name).during(shown)?;
        if let Some(there) = &there {
            let other = there.meta().during(shown)?;
            if origin.same_tree && other.id == meta.id {
                return Err(Failure::new("the copy and the original are the same file"));
            }
            if (other.kind == FileKind::Dir) != (meta.kind == FileKind::Dir) {
                return Err(Failure::new(format!(
                    "{} is there and is a {}",
                    there.shown(),
                    other.kind.word()
                )));
            }
            if meta.kind != FileKind::Dir {
                if self.args.no_clobber {
                    return Ok(());
                }
                // A new file: the old one may have other names, and may be a link to somewhere
                // else.
                to.remove_file(name).during(shown)?;
            }
        }
        if meta.kind == FileKind::Dir {
            if !self.recursive() {
                return Err(Failure::new("is a directory").advise("copy directories with -r or -a"));
            }
            origin.walk.enter(item, parent)?;
            let done = self.copy_dir(origin, item, to, name, there.as_deref());
            origin.walk.leave();
            return done;
        }
        if self.args.archive && meta.nlink > 1 {
            if let Some(first) = self.links.get(&meta.id) {
                let link = &mut |first: &dyn Item| to.make_link(name, first);
                return descend(self.top, first, link).during(shown);
            }
            let mut way = to.way().to_vec();
            way.push(name.to_vec());
            self.links.insert(meta.id, way);
        }
        let copy = match meta.kind {
            FileKind::File => self.copy_bytes(origin, item, to, name, &meta)?,
            FileKind::Symlink => to.make_symlink(name, &item.read_link()?).during(shown)?,
            _ => {
                let made = to.make_node(name, meta.kind, meta.mode, meta.rdev);
                made.during(shown)?
            }
        };
        self.copy_attributes(item, &*copy, &meta)
    }

    /// Copies a directory as `name` into `to`, or what is in it into the one that is there.
    fn copy_dir(
        &mut self,
        origin: &mut Origin,
        dir: &dyn Item,
        to: &dyn Item,
        name: &[u8],
        there: Option<&dyn Item>,
    ) -> Result<()> {
        let meta = dir.meta()?;
        // The names are taken before the copy is made: it may lie inside the original.
        let names = dir.names()?;
        let made = match there {
            Some(_) => None,
            None => Some(
                to.make_dir(name, meta.mode | 0o700)
                    .during(|| shown_below(to, name))?,
            ),
        };
        let Some(copy) = there.or(made.as_deref()) else {
            unreachable!("one of them is there");
        };
        for name in names {
            let found = dir
                .child(&name)
                .and_then(|child| child.ok_or_else(|| Failure::new("no such file or directory")));
            let done =
                found.and_then(|child| self.copy_one(origin, &*child, Some(dir), copy, &name));
            if let Err(e) = done {
                // What fails is told, and the rest is copied.
                self.tell(e.context(shown_below(dir, &name)));
            }
        }
        self.copy_attributes(dir, copy, &meta)
    }

    fn copy_bytes<'t>(
        &mut self,
        origin: &mut Origin,
        item: &dyn Item,
        to: &'t dyn Item,
        name: &[u8],
        meta: &Meta,
    ) -> Result<Box<dyn Item + 't>> {
        let shown = || shown_below(to, name);
        self.bar.set_message(item.shown());
        let mut source = item.open()?;
        let copy = to.make_file(name, meta.mode & 0o777).during(shown)?;
        // Of a file with several names only the first copy counts, but each has to be bounded.
        let is_first = meta.nlink < 2 || origin.counted.insert(meta.id);
        let mut left = if is_first {
            origin.left
        } else {
            origin.capacity
        };
        let mut offset = 0;
        while let Some((start, end)) = source.next_data(offset)? {
            offset = start;
            while offset < end {
                let want = self.buffer.len().min(u64_as_usize(end - offset));
                let got = source.read(offset, &mut self.buffer[..want])?;
                if got == 0 {
                    break;
                }
                left = left.checked_sub(usize_as_u64(got)).ok_or_else(too_much)?;
                copy.write(offset, &self.buffer[..got]).during(shown)?;
                offset += usize_as_u64(got);
                self.bar.inc(usize_as_u64(got));
            }
            if offset < end {
                break;
            }
        }
        if is_first {
            origin.left = left;
        }
        if offset < meta.size {
            copy.set_len(meta.size).during(shown)?;
        }
        Ok(copy)
    }

    /// With `--archive`: owner, mode, attributes, times, in this order, since each of the first may
    /// change the next.
    fn copy_attributes(&self, item: &dyn Item, copy: &dyn Item, meta: &Meta) -> Result<()> {
        if !self.args.archive {
            return Ok(());
        }
        let shown_copy = || copy.shown();
        let owned = copy.set_owner(meta.uid, meta.gid).during(shown_copy)?;
        if meta.kind != FileKind::Symlink {
            // Set-user-ID for another owner than the original's would be a different promise.
            let mode = if owned { meta.mode } else { meta.mode & 0o1777 };
            copy.set_mode(mode).during(shown_copy)?;
        }
        let mut lost = Vec::new();
        for (name, value) in item.xattrs()? {
            if let Err(e) = copy.set_xattr(&name, &value) {
                lost.push(format!("{} ({e})", shown(&name)));
            }
        }
        copy.set_times(meta.atime, meta.mtime).during(shown_copy)?;
        if lost.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!(
            "copied, but without the extended attributes {}",
            lost.join(", ")
        )))
    }
}

/// Files of an image share no blocks, so that all of them fit the image.
fn too_much() -> Failure {
    Failure::new("the files hold more than the whole image: some use the same blocks")
        .advise(DAMAGED)
}

/// Whether `path` lies in the directory that has this id, or is it.
fn is_below(tree: &dyn Tree, path: &[u8], dir: (u64, u64)) -> Result<bool> {
    for ancestor in Path::new(OsStr::from_bytes(path)).ancestors() {
        let there = tree.at(ancestor.as_os_str().as_bytes(), true)?;
        if let Some(there) = there
            && there.meta()?.id == dir
        {
            return Ok(true);
        }
    }
    Ok(false)
}
