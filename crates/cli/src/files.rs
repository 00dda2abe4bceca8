//! `stetfs ls`, `cat`, `rm` and `mkdir`: files of an image that is not mounted.

use std::collections::HashMap;
use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::args::{Cat, Ls, Mkdir, Rm};
use crate::clock::utc;
use crate::failure::{Explain, Failure, Result};
use crate::image::Volume;
use crate::mounts;
use crate::output;
use crate::place::{self, Place};
use crate::tree::{FileKind, Meta, Tree};

/// How much is read at once.
const CHUNK: usize = 1 << 20;

/// The images of one command, each opened once.
struct Volumes {
    writable: bool,
    open: HashMap<PathBuf, Volume>,
}

impl Volumes {
    fn new(writable: bool) -> Self {
        Self {
            writable,
            open: HashMap::new(),
        }
    }

    fn of(&mut self, place: &Place) -> Result<&Volume> {
        let image = place.in_image().0;
        let key = mounts::resolved(image);
        if !self.open.contains_key(&key) {
            let volume = Volume::open(image, self.writable)?;
            self.open.insert(key.clone(), volume);
        }
        Ok(&self.open[&key])
    }

    /// Does `each` for every place, tells what fails, goes on, and unmounts in the end.
    fn for_each(
        mut self,
        places: &[Place],
        mut each: impl FnMut(&Volume, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut result = Ok(());
        for place in places {
            let done = self
                .of(place)
                .and_then(|volume| each(volume, place.in_image().1));
            if let Err(failure) = done {
                failure.tell();
                result = Err(Failure::said());
            }
        }
        for volume in self.open.into_values() {
            volume.close()?;
        }
        result
    }
}

fn not_there(volume: &Volume, path: &[u8]) -> Failure {
    Failure::new(format!("{}: no such file or directory", volume.shown(path)))
}

pub(crate) fn cat(args: &Cat) -> Result<()> {
    if let Some(place) = args.places.iter().find(|p| matches!(p, Place::Host(_))) {
        return Err(needs_a_path(place));
    }
    let mut buffer = vec![0; CHUNK];
    Volumes::new(false).for_each(&args.places, |volume, path| {
        let meta = volume
            .meta_followed(path)?
            .ok_or_else(|| not_there(volume, path))?;
        if meta.kind != FileKind::File {
            return Err(Failure::new(format!(
                "{} is a {}",
                volume.shown(path),
                meta.kind.word()
            )));
        }
        let mut source = volume.open_followed(path)?;
        let mut offset = 0;
        loop {
            let n = source
                .read(offset, &mut buffer)
                .during(|| volume.shown(path))?;
            if n == 0 {
                return Ok(());
            }
            output::write_all(&buffer[..n])?;
            offset += n as u64;
        }
    })
}

fn needs_a_path(place: &Place) -> Failure {
    Failure::new(format!("{place}: this is not a place in an image"))
        .advise("write it as IMAGE:/PATH, with an IMAGE that exists")
        .exit(2)
}

pub(crate) fn mkdir(args: &Mkdir) -> Result<()> {
    if let Some(place) = args.places.iter().find(|p| matches!(p, Place::Host(_))) {
        return Err(needs_a_path(place));
    }
    Volumes::new(true).for_each(&args.places, |volume, path| {
        if args.parents {
            return make_parents(volume, path, args.mode);
        }
        volume
            .make_dir(path, args.mode)
            .during(|| volume.shown(path))
    })
}

fn make_parents(volume: &Volume, path: &[u8], mode: u16) -> Result<()> {
    match volume.meta_followed(path)? {
        Some(meta) if meta.kind == FileKind::Dir => return Ok(()),
        Some(meta) => {
            return Err(Failure::new(format!(
                "{} is there and is a {}",
                volume.shown(path),
                meta.kind.word()
            )));
        }
        None => {}
    }
    if let Some((parent, _)) = place::split_last(path) {
        make_parents(volume, &parent, 0o755)?;
    }
    volume.make_dir(path, mode).during(|| volume.shown(path))
}

pub(crate) fn rm(args: &Rm) -> Result<()> {
    if let Some(place) = args.places.iter().find(|p| matches!(p, Place::Host(_))) {
        return Err(needs_a_path(place));
    }
    Volumes::new(true).for_each(&args.places, |volume, path| {
        let shown = || volume.shown(path);
        if place::split_last(path).is_none() {
            return Err(Failure::new(format!(
                "{}: the root and . and .. cannot be removed",
                shown()
            )));
        }
        match volume.meta(path)? {
            None if args.force => Ok(()),
            None => Err(not_there(volume, path)),
            Some(meta) if meta.kind != FileKind::Dir => volume.remove_file(path).during(shown),
            Some(_) if args.recursive => remove_tree(volume, path),
            Some(_) => {
                Err(Failure::new(format!("{} is a directory", shown()))
                    .advise("remove it with rm -r"))
            }
        }
    })
}

/// Removes a directory and what is in it, deepest first.
fn remove_tree(volume: &Volume, dir: &[u8]) -> Result<()> {
    for name in volume.names(dir).during(|| volume.shown(dir))? {
        let path = place::join(dir, &name);
        match volume.meta(&path)? {
            Some(meta) if meta.kind == FileKind::Dir => remove_tree(volume, &path)?,
            _ => volume.remove_file(&path).during(|| volume.shown(&path))?,
        }
    }
    volume.remove_dir(dir).during(|| volume.shown(dir))
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
    permissions: String,
    #[serde(skip)]
    device: Option<(u32, u32)>,
}

/// A directory's list, or a single file's.
struct Listing {
    title: Option<String>,
    files: Vec<Listed>,
}

pub(crate) fn ls(args: &Ls) -> Result<()> {
    let mut listings = Vec::new();
    let result = Volumes::new(false).for_each(&args.places, |volume, path| {
        let follow = !args.long && !args.directory;
        let found = if follow {
            volume.meta_followed(path)?
        } else {
            volume.meta(path)?
        };
        let meta = found.ok_or_else(|| not_there(volume, path))?;
        if meta.kind == FileKind::Dir && !args.directory {
            list_dir(volume, path, args, &mut listings)
        } else {
            let files = vec![listed(volume, path, &String::from_utf8_lossy(path), &meta)?];
            listings.push(Listing { title: None, files });
            Ok(())
        }
    });
    if args.json {
        let files: Vec<Listed> = listings.into_iter().flat_map(|l| l.files).collect();
        output::json(&files)?;
    } else {
        print(&listings, args)?;
    }
    result
}

fn list_dir(volume: &Volume, dir: &[u8], args: &Ls, out: &mut Vec<Listing>) -> Result<()> {
    let mut files = Vec::new();
    let mut below = Vec::new();
    for name in volume.names(dir).during(|| volume.shown(dir))? {
        if name.starts_with(b".") && !args.all {
            continue;
        }
        let path = place::join(dir, &name);
        let Some(meta) = volume.meta(&path).during(|| volume.shown(&path))? else {
            continue;
        };
        files.push(listed(
            volume,
            &path,
            &String::from_utf8_lossy(&name),
            &meta,
        )?);
        if meta.kind == FileKind::Dir {
            below.push(path);
        }
    }
    out.push(Listing {
        title: Some(volume.shown(dir)),
        files,
    });
    if args.recursive {
        below
            .iter()
            .try_for_each(|path| list_dir(volume, path, args, out))?;
    }
    Ok(())
}

fn listed(volume: &Volume, path: &[u8], name: &str, meta: &Meta) -> Result<Listed> {
    let target = match meta.kind {
        FileKind::Symlink => Some(String::from_utf8_lossy(&volume.read_link(path)?).into_owned()),
        _ => None,
    };
    Ok(Listed {
        path: String::from_utf8_lossy(path).into_owned(),
        kind: meta.kind.word(),
        inode: meta.id.1,
        mode: format!("{:04o}", meta.mode),
        links: meta.nlink,
        uid: meta.uid,
        gid: meta.gid,
        size: meta.size,
        modified: meta.mtime.0,
        target,
        name: name.to_owned(),
        permissions: permissions(meta),
        device: matches!(meta.kind, FileKind::Char | FileKind::Block).then_some(meta.rdev),
    })
}

fn print(listings: &[Listing], args: &Ls) -> Result<()> {
    let several = listings.len() > 1;
    for (i, listing) in listings.iter().enumerate() {
        if let Some(title) = listing.title.as_ref().filter(|_| several) {
            let gap = if i > 0 { "\n" } else { "" };
            output::line(format_args!("{gap}{title}:"))?;
        }
        if args.long {
            print_long(&listing.files, args)?;
            continue;
        }
        for file in &listing.files {
            match args.inode {
                true => output::line(format_args!("{:>10} {}", file.inode, file.name))?,
                false => output::line(&file.name)?,
            }
        }
    }
    Ok(())
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
        let name = match &f.target {
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

/// `drwxr-sr-x`
fn permissions(meta: &Meta) -> String {
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
