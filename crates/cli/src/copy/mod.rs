//! `stetfs cp`: copies between trees, whichever of them is an image.
//!
//! As cp(1): what cannot be copied is told and left out, the rest is copied, and the exit code says that something was left
//! out. Attributes are set when a file's content (a directory's entries) is complete, because writing changes times.

mod host;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::Cp;
use crate::failure::{Explain, Failure, Result};
use crate::image::Volume;
use crate::mounts;
use crate::place::{self, Place};
use crate::tree::{FileKind, Meta, Tree};
use host::Host;

/// How much is read and written at once.
const CHUNK: usize = 1 << 20;

pub(crate) fn run(args: &Cp) -> Result<()> {
    let (target, sources) = args
        .places
        .split_last()
        .ok_or_else(|| Failure::new("nothing to copy"))?;
    let trees = Trees::open(args)?;
    let mut job = Job {
        args,
        to: trees.of(target),
        links: HashMap::new(),
        buffer: vec![0; CHUNK],
        bar: progress(args),
        failed: 0,
    };
    let target_path = path_of(target);
    let into = job
        .to
        .meta_followed(target_path)?
        .is_some_and(|m| m.kind == FileKind::Dir);
    if !into && (sources.len() > 1 || target_path.ends_with(b"/")) {
        return Err(Failure::new(format!("{target} is not a directory"))
            .advise("several files can only be copied into a directory that exists"));
    }
    for source in sources {
        let from = trees.of(source);
        let path = path_of(source);
        let to = if into {
            place::join(target_path, &name_of(path)?)
        } else {
            target_path.to_vec()
        };
        job.count(from, path);
        job.copy(from, path, &to, trees.same(source, target));
    }
    job.bar.finish_and_clear();
    let failed = job.failed;
    drop(job);
    trees.close()?;
    match failed {
        0 => Ok(()),
        1 => Err(Failure::new("1 file was not copied")),
        n => Err(Failure::new(format!("{n} files were not copied"))),
    }
}

/// The name that a source gets in a target directory; `.` and `/` give their content, under no name of their own.
fn name_of(path: &[u8]) -> Result<Vec<u8>> {
    if let Some((_, name)) = place::split_last(path) {
        return Ok(name);
    }
    let real = mounts::resolved(Path::new(OsStr::from_bytes(path)));
    Ok(real
        .file_name()
        .map_or_else(|| b".".to_vec(), |name| name.as_bytes().to_vec()))
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
                .advise("write places in images as IMAGE:/PATH, with an IMAGE that exists; between host paths use cp(1)")
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
    to: &'a dyn Tree,
    /// Where the first name of each file with several names went.
    links: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
    bar: ProgressBar,
    failed: u32,
}

impl Job<'_> {
    /// Adds what is to come to the bar's length.
    fn count(&self, from: &dyn Tree, path: &[u8]) {
        if self.bar.is_hidden() {
            return;
        }
        let Ok(Some(meta)) = from.meta(path) else {
            return;
        };
        self.bar.inc_length(meta.size);
        if meta.kind == FileKind::Dir && self.recursive() {
            for name in from.names(path).unwrap_or_default() {
                self.count(from, &place::join(path, &name));
            }
        }
    }

    fn recursive(&self) -> bool {
        self.args.recursive || self.args.archive
    }

    /// Copies one file with what is below it; tells what fails and goes on.
    fn copy(&mut self, from: &dyn Tree, path: &[u8], to: &[u8], same_tree: bool) {
        if let Err(e) = self.copy_one(from, path, to, same_tree) {
            self.failed += 1;
            self.bar
                .suspend(|| eprintln!("stetfs: {}", e.context(from.shown(path))));
        }
    }

    fn copy_one(&mut self, from: &dyn Tree, path: &[u8], to: &[u8], same_tree: bool) -> Result<()> {
        // As cp: a link named on the command line is followed unless the copy is recursive.
        let found = if self.recursive() {
            from.meta(path)
        } else {
            from.meta_followed(path)
        }?;
        let meta = found.ok_or_else(|| Failure::new("no such file or directory"))?;
        let there = self.to.meta(to)?;
        if let Some(there) = there {
            if same_tree && there.id == meta.id {
                return Err(Failure::new("the copy and the original are the same file"));
            }
            if (there.kind == FileKind::Dir) != (meta.kind == FileKind::Dir) {
                return Err(Failure::new(format!(
                    "{} is there and is a {}",
                    self.to.shown(to),
                    there.kind.word()
                )));
            }
            if meta.kind != FileKind::Dir {
                if self.args.no_clobber {
                    return Ok(());
                }
                // A new file: the old one may have other names, and may be a link to somewhere else.
                self.to.remove_file(to).during(|| self.to.shown(to))?;
            }
        }
        if meta.kind == FileKind::Dir {
            return self.copy_dir(from, path, to, same_tree, &meta, there.is_some());
        }
        if self.args.archive && meta.nlink > 1 {
            if let Some(first) = self.links.get(&meta.id) {
                return self.to.make_link(to, first).during(|| self.to.shown(to));
            }
            self.links.insert(meta.id, to.to_vec());
        }
        self.copy_content(from, path, to, &meta)?;
        self.copy_attributes(from, path, to, &meta)
    }

    fn copy_dir(
        &mut self,
        from: &dyn Tree,
        path: &[u8],
        to: &[u8],
        same_tree: bool,
        meta: &Meta,
        is_there: bool,
    ) -> Result<()> {
        if !self.recursive() {
            return Err(Failure::new("is a directory").advise("copy directories with -r or -a"));
        }
        // The names are taken before the copy is made: it may lie inside the original.
        let names = from.names(path)?;
        if same_tree && is_below(self.to, to, meta.id)? {
            return Err(Failure::new("cannot be copied into itself"));
        }
        if !is_there {
            self.to
                .make_dir(to, meta.mode | 0o700)
                .during(|| self.to.shown(to))?;
        }
        for name in names {
            self.copy(
                from,
                &place::join(path, &name),
                &place::join(to, &name),
                same_tree,
            );
        }
        self.copy_attributes(from, path, to, meta)
    }

    fn copy_content(&mut self, from: &dyn Tree, path: &[u8], to: &[u8], meta: &Meta) -> Result<()> {
        let shown = || self.to.shown(to);
        match meta.kind {
            FileKind::File => self.copy_bytes(from, path, to, meta),
            FileKind::Symlink => self
                .to
                .make_symlink(to, &from.read_link(path)?)
                .during(shown),
            _ => self
                .to
                .make_node(to, meta.kind, meta.mode, meta.rdev)
                .during(shown),
        }
    }

    fn copy_bytes(&mut self, from: &dyn Tree, path: &[u8], to: &[u8], meta: &Meta) -> Result<()> {
        let target = self.to;
        let shown = || target.shown(to);
        self.bar.set_message(from.shown(path));
        let mut source = from.open(path)?;
        let mut sink = target.create(to, meta.mode & 0o777).during(shown)?;
        let mut offset = 0;
        while let Some((start, end)) = source.next_data(offset)? {
            offset = start;
            while offset < end {
                let want = self.buffer.len().min((end - offset) as usize);
                let got = source.read(offset, &mut self.buffer[..want])?;
                if got == 0 {
                    break;
                }
                sink.write(offset, &self.buffer[..got]).during(shown)?;
                offset += got as u64;
                self.bar.inc(got as u64);
            }
            if offset < end {
                break;
            }
        }
        if offset < meta.size {
            sink.set_len(meta.size).during(shown)?;
        }
        Ok(())
    }

    /// With `--archive`: owner, mode, attributes, times, in this order, since each of the first may change the next.
    fn copy_attributes(
        &mut self,
        from: &dyn Tree,
        path: &[u8],
        to: &[u8],
        meta: &Meta,
    ) -> Result<()> {
        let shown = || self.to.shown(to);
        if !self.args.archive {
            return Ok(());
        }
        let owned = self.to.set_owner(to, meta.uid, meta.gid).during(shown)?;
        if meta.kind != FileKind::Symlink {
            // Set-user-ID for another owner than the original's would be a different promise.
            let mode = if owned { meta.mode } else { meta.mode & 0o1777 };
            self.to.set_mode(to, mode).during(shown)?;
        }
        let mut lost = Vec::new();
        for (name, value) in from.xattrs(path)? {
            if let Err(e) = self.to.set_xattr(to, &name, &value) {
                lost.push(format!("{} ({e})", String::from_utf8_lossy(&name)));
            }
        }
        self.to
            .set_times(to, meta.atime, meta.mtime)
            .during(shown)?;
        if lost.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!(
            "copied, but without the extended attributes {}",
            lost.join(", ")
        )))
    }
}

/// Whether `path` lies in the directory that has this id, or is it.
fn is_below(tree: &dyn Tree, path: &[u8], dir: (u64, u64)) -> Result<bool> {
    for ancestor in Path::new(OsStr::from_bytes(path)).ancestors() {
        if tree
            .meta_followed(ancestor.as_os_str().as_bytes())?
            .is_some_and(|m| m.id == dir)
        {
            return Ok(true);
        }
    }
    Ok(false)
}
