//! `stetfs mv` and `ln`: names of files in an image that is not mounted, as mv(1) and ln(1) change
//! them. Both stay in one image.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::args::{Ln, Mv};
use crate::failure::{Explain, Failure, Result};
use crate::files::{needs_a_path, not_there};
use crate::image::Volume;
use crate::mounts;
use crate::place::{self, Place};
use crate::tree::{FileKind, Meta, Tree};

/// The place where the new names go.
struct Target<'a> {
    place: &'a Place,
    path: &'a [u8],
    /// True if it is a directory, or a link to one: the names go into it.
    is_dir: bool,
}

impl<'a> Target<'a> {
    fn new(volume: &Volume, place: &'a Place, sources: usize) -> Result<Self> {
        let path = place.in_image().1;
        let there = volume.meta(path)?;
        let is_dir = there.is_some_and(|meta| meta.kind == FileKind::Dir);
        if !is_dir && sources > 1 {
            return Err(Failure::new(format!("{place} is not a directory")));
        }
        Ok(Self {
            place,
            path,
            is_dir,
        })
    }

    /// Returns the new path of a file whose path ends in `name`.
    fn path_for(&self, name: &[u8]) -> Vec<u8> {
        if self.is_dir {
            place::join(self.path, name)
        } else {
            self.path.to_vec()
        }
    }
}

/// Opens the one image in which all these places are.
fn open_image(places: &[&Place], advice: &str) -> Result<Volume> {
    let mut image: Option<(PathBuf, &Path)> = None;
    for place in places {
        let Place::Image { image: path, .. } = place else {
            return Err(needs_a_path(place).advise(advice));
        };
        let key = mounts::resolved(path);
        if image.as_ref().is_some_and(|(first, _)| *first != key) {
            return Err(Failure::new("all places must be in one image")
                .advise(advice)
                .exit(2));
        }
        image = Some((key, path));
    }
    let (_, image) = image.ok_or_else(|| Failure::new("no place was given").exit(2))?;
    Volume::open(image, true)
}

/// Does `each` for every item. Tells what fails, goes on, and fails at the end.
fn each<'s, T: ?Sized + 's>(
    sources: impl IntoIterator<Item = &'s T>,
    mut each: impl FnMut(&'s T) -> Result<()>,
) -> Result<()> {
    let mut result = Ok(());
    for source in sources {
        if let Err(failure) = each(source) {
            failure.tell();
            result = Err(Failure::said());
        }
    }
    result
}

pub(crate) fn mv(args: &Mv) -> Result<()> {
    let Some((target, sources)) = args.places.split_last() else {
        return Err(Failure::new("nothing to move"));
    };
    let all: Vec<&Place> = args.places.iter().collect();
    let volume = open_image(
        &all,
        "to move from one image to another: stetfs cp -a, then stetfs rm",
    )?;
    let done = Target::new(&volume, target, sources.len()).and_then(|target| {
        let mut moved = HashSet::new();
        each(sources, |source| {
            move_one(args, &volume, source.in_image().1, &target, &mut moved)
        })
    });
    volume.close()?;
    done
}

fn move_one(
    args: &Mv,
    volume: &Volume,
    path: &[u8],
    target: &Target<'_>,
    moved: &mut HashSet<(u64, u64)>,
) -> Result<()> {
    let shown = || volume.shown(path);
    let Some((_, name)) = place::split_last(path) else {
        return Err(Failure::new(format!(
            "{}: the root and . and .. cannot be moved",
            shown()
        )));
    };
    let new = target.path_for(&name);
    let meta = lstat(volume, path)?.ok_or_else(|| not_there(volume, path))?;
    let is_dir = meta.kind == FileKind::Dir;
    if !is_dir && path.ends_with(b"/") {
        return Err(Failure::new(format!("{} is not a directory", shown())));
    }
    if !is_dir && new.ends_with(b"/") {
        return Err(Failure::new(format!("{} is not a directory", target.place)));
    }
    if let Some(there) = lstat(volume, &new)? {
        let shown_new = volume.shown(&new);
        if there.id == meta.id {
            return Err(Failure::new(format!(
                "{} and {shown_new} are the same file",
                shown()
            )));
        }
        if args.no_clobber {
            return Ok(());
        }
        if (there.kind == FileKind::Dir) != is_dir {
            return Err(Failure::new(format!(
                "{shown_new} exists and is a {}",
                there.kind.word()
            )));
        }
        if moved.contains(&there.id) {
            return Err(Failure::new(format!(
                "{shown_new} was just moved there, and is not overwritten"
            )));
        }
    }
    volume.rename(path, &new).during(shown)?;
    moved.insert(meta.id);
    Ok(())
}

/// Returns what is at a path; does not follow a link.
fn lstat(volume: &Volume, path: &[u8]) -> Result<Option<Meta>> {
    let end = path
        .iter()
        .rposition(|b| *b != b'/')
        .map_or(path.len(), |at| at + 1);
    let there = volume.at(&path[..end], false)?;
    there.map(|item| item.meta()).transpose()
}

/// True if two paths are one name in one directory.
fn is_same_name(volume: &Volume, a: &[u8], b: &[u8]) -> Result<bool> {
    let (Some((a, first)), Some((b, second))) = (place::split_last(a), place::split_last(b)) else {
        return Ok(false);
    };
    let id = |dir: &[u8]| Ok::<_, Failure>(volume.meta(dir)?.map(|meta| meta.id));
    Ok(first == second && id(&a)? == id(&b)?)
}

pub(crate) fn ln(args: &Ln) -> Result<()> {
    let Some((target, sources)) = args.words.split_last() else {
        return Err(Failure::new("nothing to link"));
    };
    let target = Place::from(target.clone());
    let existing: Vec<Place> = if args.symbolic {
        Vec::new()
    } else {
        sources.iter().cloned().map(Place::from).collect()
    };
    let all: Vec<&Place> = existing.iter().chain([&target]).collect();
    let volume = open_image(&all, "a link stays in its image; to copy: stetfs cp")?;
    let done = Target::new(&volume, &target, sources.len()).and_then(|target| {
        if args.symbolic {
            each(sources, |words: &OsString| {
                let name = place::last_part(words.as_bytes());
                let new = target.path_for(name);
                make_room(args, &volume, &new, None)?;
                let made = volume.make_symlink(words.as_bytes(), &new);
                made.during(|| volume.shown(&new))
            })
        } else {
            each(&existing, |place: &Place| {
                link_one(args, &volume, place.in_image().1, &target)
            })
        }
    });
    volume.close()?;
    done
}

fn link_one(args: &Ln, volume: &Volume, path: &[u8], target: &Target<'_>) -> Result<()> {
    let new = target.path_for(place::last_part(path));
    let item = volume
        .at(path, false)?
        .ok_or_else(|| not_there(volume, path))?;
    let meta = item.meta()?;
    if meta.kind == FileKind::Dir {
        return Err(Failure::new(format!(
            "{} is a directory, which can have one name only",
            volume.shown(path)
        ))
        .advise("ln -s makes a symbolic link"));
    }
    make_room(args, volume, &new, Some((path, &meta)))?;
    volume.make_link(path, &new).during(|| volume.shown(&new))
}

/// With `--force`, removes the file that has the link's name, unless it is the file to link.
fn make_room(
    args: &Ln,
    volume: &Volume,
    new: &[u8],
    existing: Option<(&[u8], &Meta)>,
) -> Result<()> {
    let (Some(there), true) = (lstat(volume, new)?, args.force) else {
        return Ok(());
    };
    if let Some((path, meta)) = existing
        && there.id == meta.id
        && is_same_name(volume, path, new)?
    {
        let shown = volume.shown(new);
        return Err(Failure::new(format!("{shown} is that file already")));
    }
    if there.kind == FileKind::Dir {
        return Err(Failure::new(format!(
            "{} exists and is a directory",
            volume.shown(new)
        )));
    }
    volume.remove_file(new).during(|| volume.shown(new))
}
