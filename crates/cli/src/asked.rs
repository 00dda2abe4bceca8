//! The part of an image that the options --partition and --offset ask for, or the mount options
//! `partition=` and `offset=`: the image gets the part's name (`part/`).

use std::ffi::OsString;

use crate::args::{Command, PartArgs};
use crate::failure::{EXIT_USAGE, Failure, Result};
use crate::find;
use crate::part::{self, Wish};
use crate::place::Place;
use crate::size::Size;

fn wish(args: &PartArgs) -> Option<Wish> {
    let offset = args.offset.map(|Size(bytes)| Wish::Offset(bytes, None));
    args.partition.map(Wish::Partition).or(offset)
}

/// Gives the images of a command the names of the parts that its options ask for.
pub(crate) fn name_parts(command: &mut Command) -> Result<()> {
    let (image, args) = match command {
        Command::Mount(c) => {
            let mut both = take_out(&mut c.options)?.into_iter().chain(wish(&c.part));
            return both.try_for_each(|wish| part::name(&mut c.image, wish));
        }
        Command::Mkfs(c) => {
            if let Some(wish) = wish(&c.part) {
                part::name(&mut c.image, wish)?;
                if let part::Image::Whole(node) = part::find(&c.image)? {
                    c.image = node.into_owned();
                }
            }
            return Ok(());
        }
        Command::Drain(c) => (&mut c.path, &c.part),
        Command::Recover(c) => (&mut c.image, &c.part),
        Command::Fsck(c) => (&mut c.image, &c.part),
        Command::Grow(c) => (&mut c.image, &c.how.part),
        Command::Shrink(c) => (&mut c.image, &c.how.part),
        Command::Info(c) => (&mut c.image, &c.part),
        Command::Journal(c) => (&mut c.image, &c.part),
        Command::Below(c) => (&mut c.image, &c.part),
        Command::Ls(c) => return name_places(&mut c.places, true, &c.part),
        Command::Cat(c) => return name_places(&mut c.places, true, &c.part),
        Command::Cp(c) => return name_places(&mut c.places, false, &c.part),
        Command::Tar(c) => return name_places(&mut c.places, true, &c.part),
        Command::Mv(c) => return name_places(&mut c.places, false, &c.part),
        Command::Rm(c) => return name_places(&mut c.places, false, &c.part),
        Command::Mkdir(c) => return name_places(&mut c.places, false, &c.part),
        Command::Du(c) => return name_places(&mut c.places, true, &c.part),
        Command::Diff(c) => {
            name_place(&mut c.a, &c.part)?;
            return name_place(&mut c.b, &c.part);
        }
        Command::Find(c) => {
            let is_place = |word: &&mut OsString| find::is_place(word);
            for word in c.words.iter_mut().take_while(is_place) {
                let mut place = Place::from(word.clone());
                name_place(&mut place, &c.part)?;
                *word = match &place {
                    Place::Host(image) => image.clone().into_os_string(),
                    Place::Image { image, path } => Place::written(image, path),
                };
            }
            return Ok(());
        }
        Command::Ln(c) => {
            let Some(wish) = wish(&c.part) else {
                return Ok(());
            };
            let link = if c.symbolic { c.words.len() - 1 } else { 0 };
            for word in &mut c.words[link..] {
                let mut place = Place::from(word.clone());
                if let Place::Image { image, path } = &mut place {
                    part::name(image, wish)?;
                    *word = Place::written(image, path);
                }
            }
            return Ok(());
        }
        _ => return Ok(()),
    };
    match wish(args) {
        Some(wish) => part::name(image, wish),
        None => Ok(()),
    }
}

/// Does so for one place; a path is an image unless it is a directory.
fn name_place(place: &mut Place, args: &PartArgs) -> Result<()> {
    let is_image = !matches!(place, Place::Host(path) if path.is_dir());
    name_places(std::slice::from_mut(place), is_image, args)
}

/// Does so for the images of places. With `bare`, a path without a colon is an image, too.
fn name_places(places: &mut [Place], bare: bool, args: &PartArgs) -> Result<()> {
    let Some(wish) = wish(args) else {
        return Ok(());
    };
    for place in places {
        match place {
            Place::Image { image, .. } => part::name(image, wish)?,
            Place::Host(image) if bare => part::name(image, wish)?,
            Place::Host(_) => {}
        }
    }
    Ok(())
}

/// Takes `partition=N` and `offset=BYTES` out of mount options.
pub(crate) fn take_out(options: &mut Vec<String>) -> Result<Option<Wish>> {
    let mut found = Vec::new();
    let mut rest = Vec::new();
    for word in options.iter() {
        let wrong = |e: String| Failure::new(format!("{word}: {e}")).exit(EXIT_USAGE);
        if let Some(number) = word.strip_prefix("partition=") {
            let number = number.parse().ok().filter(|n| *n > 0);
            let number = number.ok_or_else(|| wrong("partitions count from 1 on".to_owned()))?;
            found.push(Wish::Partition(number));
        } else if let Some(bytes) = word.strip_prefix("offset=") {
            let Size(bytes) = bytes.parse().map_err(wrong)?;
            found.push(Wish::Offset(bytes, None));
        } else {
            rest.push(word.clone());
        }
    }
    if found.len() > 1 {
        let failure = Failure::new("one of partition= and offset= is enough");
        return Err(failure.exit(EXIT_USAGE));
    }
    *options = rest;
    Ok(found.pop())
}
