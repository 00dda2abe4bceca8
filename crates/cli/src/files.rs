//! `stetfs ls`, `cat`, `rm` and `mkdir`: files of an image that is not mounted.

use std::collections::HashMap;
use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use stetfs_format::width::usize_as_u64;

use crate::args::{Cat, Ls, Mkdir, Rm};
use crate::clock::utc;
use crate::failure::{Explain, Failure, Result};
use crate::image::Volume;
use crate::mounts;
use crate::output;
use crate::place::{self, Place};
use crate::shown::shown;
use crate::tree::{FileKind, Item, Meta, Tree, Walk, shown_below};

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// The images of one command, each opened once.
pub(crate) struct Volumes {
    writable: bool,
    open: HashMap<PathBuf, Volume>,
}

impl Volumes {
    pub(crate) fn new(writable: bool) -> Self {
        Self {
            writable,
            open: HashMap::new(),
        }
    }

    pub(crate) fn of(&mut self, place: &Place) -> Result<&Volume> {
        let image = place.in_image().0;
        let key = mounts::resolved(image);
        if !self.open.contains_key(&key) {
            let volume = Volume::open(image, self.writable)?;
            self.open.insert(key.clone(), volume);
        }
        Ok(&self.open[&key])
    }

    /// Returns the volume of a place that [`Volumes::of`] has opened.
    pub(crate) fn opened(&self, place: &Place) -> &Volume {
        &self.open[&mounts::resolved(place.in_image().0)]
    }

    /// Does `each` for every place. Tells what fails, and goes on.
    pub(crate) fn each<'p>(
        &mut self,
        places: impl IntoIterator<Item = &'p Place>,
        mut each: impl FnMut(&Volume, &'p Place) -> Result<()>,
    ) -> Result<()> {
        let mut result = Ok(());
        for place in places {
            if let Err(failure) = self.of(place).and_then(|volume| each(volume, place)) {
                failure.tell();
                result = Err(Failure::said());
            }
        }
        result
    }

    /// Does `each` for every place, as [`Volumes::each`] does, and unmounts at the end.
    fn for_each(
        mut self,
        places: &[Place],
        mut each: impl FnMut(&Volume, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let result = self.each(places, |volume, place| each(volume, place.in_image().1));
        self.close()?;
        result
    }

    pub(crate) fn close(self) -> Result<()> {
        self.open.into_values().try_for_each(Volume::close)
    }
}

pub(crate) fn not_there(volume: &dyn Tree, path: &[u8]) -> Failure {
    Failure::new(format!("{}: no such file or directory", volume.shown(path)))
}

pub(crate) fn cat(args: &Cat) -> Result<()> {
    if let Some(place) = args.places.iter().find(|p| matches!(p, Place::Host(_))) {
        return Err(needs_a_path(place));
    }
    let mut buffer = vec![0; CHUNK];
    Volumes::new(false).for_each(&args.places, |volume, path| {
        let file = volume
            .at(path, true)?
            .ok_or_else(|| not_there(volume, path))?;
        let kind = file.meta()?.kind;
        if kind != FileKind::File {
            return Err(Failure::new(format!(
                "{} is a {}",
                file.shown(),
                kind.word()
            )));
        }
        let mut source = file.open()?;
        let mut offset = 0;
        loop {
            let n = source
                .read(offset, &mut buffer)
                .during(|| volume.shown(path))?;
            if n == 0 {
                return Ok(());
            }
            output::write_all(&buffer[..n])?;
            offset += usize_as_u64(n);
        }
    })
}

pub(crate) fn needs_a_path(place: &Place) -> Failure {
    Failure::new(format!("{place}: this is not a place in an image"))
        .advise("write it as IMAGE:/PATH, with an IMAGE that exists")
        .exit(2)
}

pub(crate) fn mkdir(args: &Mkdir) -> Result<()> {
    if let Some(place) = args.places.iter().find(|p| matches!(p, Place::Host(_))) {
        return Err(needs_a_path(place));
    }
    Volumes::new(true).for_each(&args.places, |volume, path| {
        let made = if args.parents {
            make_parents(volume, path)?
        } else {
            Some(volume.make_dir(path, 0o777).during(|| volume.shown(path))?)
        };
        match (made, args.mode) {
            (Some(dir), Some(mode)) => {
                // As mkdir: the set-group-ID that it got from its directory stays.
                let special = dir.meta()?.mode & 0o6000;
                dir.set_mode(mode | special).during(|| volume.shown(path))
            }
            _ => Ok(()),
        }
    })
}

/// Makes the missing directories on a path; returns the last one, if it was made.
fn make_parents<'v>(volume: &'v Volume, path: &[u8]) -> Result<Option<Box<dyn Item + 'v>>> {
    let mut last = None;
    let ends = (1..path.len()).filter(|at| path[*at] == b'/' && path[at - 1] != b'/');
    for end in ends.chain([path.len()]) {
        let (here, shown) = (&path[..end], || volume.shown(&path[..end]));
        last = match volume.meta(here)? {
            Some(meta) if meta.kind == FileKind::Dir => None,
            Some(meta) => {
                let (shown, kind) = (shown(), meta.kind.word());
                return Err(Failure::new(format!("{shown} exists and is a {kind}")));
            }
            None => {
                let dir = volume.make_dir(here, 0o777).during(shown)?;
                // Whatever the umask says: the next directory is made in this one.
                let mode = dir.meta()?.mode;
                if end < path.len() && mode & 0o300 != 0o300 {
                    dir.set_mode(mode | 0o300).during(shown)?;
                }
                Some(dir)
            }
        };
    }
    Ok(last)
}

pub(crate) fn rm(args: &Rm) -> Result<()> {
    if let Some(place) = args.places.iter().find(|p| matches!(p, Place::Host(_))) {
        return Err(needs_a_path(place));
    }
    Volumes::new(true).for_each(&args.places, |volume, path| {
        let shown = || volume.shown(path);
        let Some((parent, name)) = place::split_last(path) else {
            return Err(Failure::new(format!(
                "{}: the root and . and .. cannot be removed",
                shown()
            )));
        };
        let dir = volume.at(&parent, true)?;
        let file = dir.as_ref().map(|dir| dir.child(&name)).transpose()?;
        let (Some(dir), Some(file)) = (&dir, file.flatten()) else {
            return if args.force {
                Ok(())
            } else {
                Err(not_there(volume, path))
            };
        };
        let kind = file.meta()?.kind;
        if kind != FileKind::Dir {
            // Only a directory may be named with a slash at the end. A link is not followed.
            if !path.ends_with(b"/") {
                return dir.remove_file(&name).during(shown);
            }
            return if args.force && kind != FileKind::Symlink {
                Ok(())
            } else {
                Err(Failure::new(format!("{} is not a directory", shown())))
            };
        }
        if !args.recursive {
            return Err(
                Failure::new(format!("{} is a directory", shown())).advise("remove it with rm -r")
            );
        }
        let mut walk = Walk::new(volume);
        if remove_tree(&mut walk, &**dir, &name, &*file)? {
            Ok(())
        } else {
            Err(Failure::said())
        }
    })
}

/// Removes a directory and what is in it, deepest first. Tells what cannot be removed, removes the
/// rest, and then returns false.
pub(crate) fn remove_tree(
    walk: &mut Walk,
    parent: &dyn Item,
    name: &[u8],
    dir: &dyn Item,
) -> Result<bool> {
    let shown = || dir.shown();
    walk.enter(dir, Some(parent)).during(shown)?;
    let mut is_empty = true;
    for name in dir.names().during(shown)? {
        let removed = match dir.child(&name).during(shown)? {
            Some(child) if child.meta()?.kind == FileKind::Dir => {
                remove_tree(walk, dir, &name, &*child)
            }
            Some(child) => dir
                .remove_file(&name)
                .during(|| child.shown())
                .map(|()| true),
            None => Ok(true),
        };
        is_empty &= removed.unwrap_or_else(|e| {
            e.tell();
            false
        });
    }
    walk.leave();
    if is_empty {
        parent.remove_dir(name).during(shown)?;
    }
    Ok(is_empty)
}

/// One file in the list. Times are seconds since 1970.
#[derive(Debug, Serialize)]
struct Listed {
    path: String,
    kind: &'static str,
    inode: u64,
    /// Octal.
    mode: String,
    links: u64,
    uid: u32,
    gid: u32,
    size: u64,
    modified: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    shown_target: Option<String>,
    #[serde(skip)]
    permissions: String,
    #[serde(skip)]
    device: Option<(u32, u32)>,
}

pub(crate) fn ls(args: &Ls) -> Result<()> {
    let mut out = Lister {
        args,
        titles: args.recursive || args.places.len() > 1,
        is_first: true,
        json: output::JsonList::new(),
    };
    // As ls: sorted, directories last.
    let mut places: Vec<&Place> = args.places.iter().collect();
    places.sort_by_key(|place| (place.in_image().0, place.in_image().1));
    let (mut files, mut dirs) = (Vec::new(), Vec::new());
    let mut volumes = Volumes::new(false);
    let named = volumes.each(places, |volume, place| {
        let path = place.in_image().1;
        let file = volume
            .at(path, false)?
            .ok_or_else(|| not_there(volume, path))?;
        let meta = file.meta()?;
        // A link to a directory stands for the directory, unless -l or -d shows the link itself.
        let follow = !args.long && meta.kind == FileKind::Symlink;
        let led = if follow {
            volume.meta(path).ok().flatten()
        } else {
            None
        };
        if !args.directory && led.unwrap_or(meta).kind == FileKind::Dir {
            dirs.push(place);
            return Ok(());
        }
        let shown = volume.shown(path);
        files.push(listed(&*file, path, shown)?);
        Ok(())
    });
    let put = if files.is_empty() {
        Ok(())
    } else {
        out.put(None, &files)
    };
    let below = volumes.each(dirs, |volume, place| {
        let path = place.in_image().1;
        let dir = volume
            .at(path, true)?
            .ok_or_else(|| not_there(volume, path))?;
        out.dir(&mut Walk::new(volume), &*dir, path, None)
    });
    volumes.close()?;
    let result = named.and(put).and(below);
    if args.json {
        out.json.end()?;
    }
    result
}

/// Prints one directory after the other, so that a large tree needs no memory.
struct Lister<'a> {
    args: &'a Ls,
    /// True if each directory's list begins with its path.
    titles: bool,
    is_first: bool,
    json: output::JsonList,
}

impl Lister<'_> {
    /// Lists a directory, and with -R what is below it. Tells what fails, and lists the rest.
    fn dir(
        &mut self,
        walk: &mut Walk,
        dir: &dyn Item,
        path: &[u8],
        parent: Option<&dyn Item>,
    ) -> Result<()> {
        walk.enter(dir, parent).during(|| dir.shown())?;
        let done = self.entered(walk, dir, path);
        walk.leave();
        done
    }

    fn entered(&mut self, walk: &mut Walk, dir: &dyn Item, path: &[u8]) -> Result<()> {
        let mut result = Ok(());
        let mut failed = |failure: Failure| {
            failure.tell();
            result = Err(Failure::said());
        };
        let mut files = Vec::new();
        let mut below = Vec::new();
        for name in dir.names().during(|| dir.shown())? {
            if name.starts_with(b".") && !self.args.all {
                continue;
            }
            let path = place::join(path, &name);
            let file = dir.child(&name).and_then(|file| {
                file.map(|file| listed(&*file, &path, shown(&name)))
                    .transpose()
            });
            match file.during(|| shown_below(dir, &name)) {
                Ok(Some(file)) => {
                    if file.kind == FileKind::Dir.word() {
                        below.push((name, path));
                    }
                    files.push(file);
                }
                Ok(None) => {}
                Err(e) => failed(e),
            }
        }
        self.put(Some(dir.shown()), &files)?;
        drop(files);
        if !self.args.recursive {
            return result;
        }
        for (name, path) in below {
            let done = match dir.child(&name) {
                Ok(Some(child)) => self.dir(walk, &*child, &path, Some(dir)),
                Ok(None) => Ok(()),
                Err(e) => Err(e.context(shown_below(dir, &name))),
            };
            if let Err(e) = done {
                failed(e);
            }
        }
        result
    }

    fn put(&mut self, title: Option<String>, files: &[Listed]) -> Result<()> {
        if self.args.json {
            return files.iter().try_for_each(|file| self.json.put(file));
        }
        if let Some(title) = title.filter(|_| self.titles) {
            let gap = if self.is_first { "" } else { "\n" };
            output::line(format_args!("{gap}{title}:"))?;
        }
        self.is_first = false;
        if self.args.long {
            return print_long(files, self.args);
        }
        for file in files {
            if self.args.inode {
                output::line(format_args!("{:>10} {}", file.inode, file.name))?
            } else {
                output::line(&file.name)?
            }
        }
        Ok(())
    }
}

fn listed(file: &dyn Item, path: &[u8], name: String) -> Result<Listed> {
    let meta = file.meta()?;
    let target = match meta.kind {
        FileKind::Symlink => Some(file.read_link()?),
        _ => None,
    };
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Listed {
        path: words(path),
        kind: meta.kind.word(),
        inode: meta.id.1,
        mode: format!("{:04o}", meta.mode),
        links: meta.nlink,
        uid: meta.uid,
        gid: meta.gid,
        size: meta.size,
        modified: meta.mtime.0,
        name,
        shown_target: target.as_deref().map(shown),
        target: target.as_deref().map(words),
        permissions: permissions(&meta),
        device: matches!(meta.kind, FileKind::Char | FileKind::Block).then_some(meta.rdev),
    })
}

fn print_long(files: &[Listed], args: &Ls) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for f in files {
        let size = f.device.map_or_else(
            || f.size.to_string(),
            |(major, minor)| format!("{major}, {minor}"),
        );
        let name = match &f.shown_target {
            Some(target) => format!("{} -> {target}", f.name),
            None => f.name.clone(),
        };
        let mut row = vec![
            f.permissions.clone(),
            f.links.to_string(),
            f.uid.to_string(),
            f.gid.to_string(),
        ];
        row.extend([size, utc(f.modified), name]);
        if args.inode {
            row.insert(0, f.inode.to_string());
        }
        table.add_row(row);
    }
    let shift = usize::from(args.inode);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if i < shift || (shift + 1..=shift + 4).contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    output::line(table.trim_fmt())
}

/// Formats type and permissions: `drwxr-sr-x`.
pub(crate) fn permissions(meta: &Meta) -> String {
    let mut text = String::from(meta.kind.letter());
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = meta.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, meta.mode & special != 0) {
            (true, false) => 'x',
            (false, false) => '-',
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_those_of_ls() {
        let meta = |kind, mode| Meta {
            kind,
            mode,
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 0,
            blocks: 0,
            id: (0, 0),
            atime: (0, 0),
            mtime: (0, 0),
            rdev: (0, 0),
        };
        assert_eq!(permissions(&meta(FileKind::Dir, 0o1777)), "drwxrwxrwt");
        assert_eq!(permissions(&meta(FileKind::File, 0o4755)), "-rwsr-xr-x");
        assert_eq!(permissions(&meta(FileKind::File, 0o2644)), "-rw-r-Sr--");
        assert_eq!(permissions(&meta(FileKind::Symlink, 0o777)), "lrwxrwxrwx");
    }
}
