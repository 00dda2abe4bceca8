//! `stetfs tar`: files of an image as an archive, and an archive into an image.
//!
//! As with cp, a file that cannot be read is named and left out, and the exit code says so.
//! `archive/` reads and writes archives; `copy/` has what becomes of one file of an archive.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::archive::{self, Archive, Packer, Spool};
use crate::args::Tar;
use crate::copy::{self, Destination};
use crate::failure::{Explain, Failure, Result};
use crate::files::{Volumes, not_there};
use crate::identity;
use crate::image::Volume;
use crate::output;
use crate::part;
use crate::progress;
use crate::shown::shown;
use crate::tree::{FileKind, Item, Tree};

pub(crate) fn run(args: &Tar) -> Result<()> {
    if args.create {
        create(args)
    } else {
        extract(args)
    }
}

fn create(args: &Tar) -> Result<()> {
    if !args.which.is_any() {
        let what = "--tag and --platform say which container image -x unpacks";
        return Err(Failure::new(what).exit(2));
    }
    let mut volumes = Volumes::new(false);
    for place in &args.places {
        volumes.of(place)?;
    }
    let out = open_output(args)?;
    let bar = progress::bar(progress::BYTES, None, args.quiet);
    let mut packer = Packer::new(out, &args.owners, &bar);
    let base = args.directory.as_deref().unwrap_or("/").as_bytes();
    let packed = args.places.iter().try_for_each(|place| {
        let (volume, path) = (volumes.opened(place), place.in_image().1);
        let name = name_below(base, path)?;
        let item = volume.at(path, false)?;
        let item = item.ok_or_else(|| not_there(volume, path))?;
        packer.add(volume, &*item, &name)
    });
    let packed = packed.and_then(|()| packer.end());
    bar.finish_and_clear();
    volumes.close()?;
    match packed? {
        0 => Ok(()),
        1 => Err(Failure::new("1 file is not in the archive as it is")),
        n => Err(Failure::new(format!(
            "{n} files are not in the archive as they are"
        ))),
    }
}

/// Opens the archive that is written.
fn open_output(args: &Tar) -> Result<Box<dyn Write>> {
    let file: Box<dyn Write> = match args.file.as_deref() {
        Some(path) if path.as_os_str() != "-" => {
            check_other(args, path)?;
            let file = File::create(path).during(|| path.display().to_string())?;
            Box::new(file)
        }
        _ if io::stdout().is_terminal() => {
            return Err(Failure::new("an archive is nothing for a terminal")
                .advise("write it to a file: -f FILE")
                .exit(2));
        }
        _ => Box::new(output::Stream),
    };
    Ok(Box::new(BufWriter::with_capacity(1 << 18, file)))
}

/// Fails if the archive would be written over one of the images.
fn check_other(args: &Tar, path: &Path) -> Result<()> {
    let id = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    let Some(archive) = id(path) else {
        return Ok(());
    };
    for place in &args.places {
        if id(part::file_of(place.in_image().0)) == Some(archive) {
            let shown = path.display();
            return Err(Failure::new(format!("{shown} is the image, not an archive")).exit(2));
        }
    }
    Ok(())
}

/// Returns what the archive calls a file of the image.
fn name_below(base: &[u8], path: &[u8]) -> Result<Vec<u8>> {
    let parts = |path: &[u8]| -> Vec<Vec<u8>> {
        let parts = path.split(|byte| *byte == b'/');
        let parts = parts.filter(|part| !matches!(*part, b"" | b"."));
        parts.map(<[u8]>::to_vec).collect()
    };
    let (base_parts, parts) = (parts(base), parts(path));
    if parts.contains(&b"..".to_vec()) {
        return Err(Failure::new("a path with a part `..`").context(shown(path)));
    }
    let Some(below) = parts.strip_prefix(&*base_parts) else {
        let why = format!("is not below {}", shown(base));
        return Err(Failure::new(why).context(shown(path)));
    };
    if below.is_empty() {
        return Ok(b".".to_vec());
    }
    Ok(below.join(&b'/'))
}

fn extract(args: &Tar) -> Result<()> {
    let [place] = &*args.places else {
        return Err(Failure::new("an archive is unpacked into one directory of one image").exit(2));
    };
    let (image, path) = place.in_image();
    let from = args.file.as_deref().unwrap_or(Path::new("-"));
    let spool = Spool::beside(part::file_of(image), args.quiet);
    let latest = identity::latest()?;
    // Before the image is opened: this may wait for whoever writes the archive.
    let archive = Archive::open(from, &spool, &args.which, latest.unwrap_or_default());
    let archive = archive.during(|| archive::shown_path(from))?;
    let volume = Volume::open(image, true)?;
    let is_dir = |item: Box<dyn Item + '_>| Ok::<_, Failure>(item.meta()?.kind == FileKind::Dir);
    match volume.at(path, true)?.map(is_dir).transpose()? {
        Some(true) => {}
        Some(false) => return Err(Failure::new("is no directory").context(volume.shown(path))),
        None => return Err(not_there(&volume, path)),
    }
    let to = Destination {
        volume: &volume,
        path,
        image,
        owners: &args.owners,
        quiet: args.quiet,
        replaces: true,
    };
    let unpacked = copy::fill(&archive, b"/", &to, latest);
    let closed = volume.close();
    unpacked.and(closed)
}

#[cfg(test)]
mod tests {
    use super::name_below;

    #[test]
    fn names_begin_below_a_directory() {
        for (base, path, name) in [
            ("/", "/etc/ssh", "etc/ssh"),
            ("/", "/etc/", "etc"),
            ("/", "/", "."),
            ("/etc", "/etc", "."),
            ("/etc/", "//etc/./ssh", "ssh"),
        ] {
            let found = name_below(base.as_bytes(), path.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(found).unwrap(), name);
        }
        for (base, path) in [("/etc", "/etcetera"), ("/etc", "/"), ("/", "/a/../b")] {
            assert!(name_below(base.as_bytes(), path.as_bytes()).is_err());
        }
    }
}
