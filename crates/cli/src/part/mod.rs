//! Parts of a file or device: `disk.img?partition=2`, or `disk.img?offset=1048576`, with
//! `&size=BYTES` if the part does not reach to the end. The options --partition and --offset give
//! an image such a name; from there on it is an image like any other. e2fsprogs takes
//! `?offset=BYTES` in the same way.
//!
//! A file that exists under exactly that name is meant itself.
//!
//! A disk in the format qcow2 is all of its content, or a part of that.

mod extent;
mod qcow2;
mod window;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stetfs::MountOptions;
use stetfs_media::BlockDev;

use crate::failure::{EXIT_USAGE, Explain, Failure, Result};
use crate::holds::{self, Holds, Kind, Partition};
use crate::size::Size;
pub(crate) use extent::{Extent, Range};
use qcow2::Qcow2;
pub(crate) use window::{Use, Window, is_locked};

/// How a part is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// A partition by its number.
    Partition(u32),
    /// From this byte on, and so many bytes.
    Offset(u64, Option<u64>),
}

/// Splits the name of a part into the file and the part.
fn split(image: &Path) -> Option<(&Path, Wish)> {
    let bytes = image.as_os_str().as_bytes();
    let at = bytes.iter().rposition(|byte| *byte == b'?')?;
    if at == 0 || image.symlink_metadata().is_ok() {
        return None;
    }
    let words = std::str::from_utf8(&bytes[at + 1..]).ok()?;
    let number = |text: &str| text.parse::<u64>().ok();
    let wish = if let Some(n) = words.strip_prefix("partition=") {
        Wish::Partition(n.parse().ok().filter(|n| *n > 0)?)
    } else {
        let range = words.strip_prefix("offset=")?;
        match range.split_once("&size=") {
            Some((offset, size)) => Wish::Offset(number(offset)?, Some(number(size)?)),
            None => Wish::Offset(number(range)?, None),
        }
    };
    Some((Path::new(OsStr::from_bytes(&bytes[..at])), wish))
}

/// Returns the file or device that an image is, or is a part of.
pub(crate) fn file_of(image: &Path) -> &Path {
    split(image).map_or(image, |(file, _)| file)
}

/// Returns whether an image is named as a part of a file.
pub(crate) fn is_part(image: &Path) -> bool {
    split(image).is_some()
}

/// Returns whether an image is a disk in the format qcow2, or a part of one.
pub(crate) fn is_qcow2(image: &Path) -> bool {
    qcow2::is_qcow2(file_of(image))
}

/// Fails if the image is one that can only be read.
pub(crate) fn check_writable(image: &Path) -> Result<()> {
    if !is_qcow2(image) {
        return Ok(());
    }
    let shown = file_of(image).display();
    Err(Failure::new(format!(
        "{shown} is a disk in the format qcow2, which is only read here"
    ))
    .advise(format!(
        "make a raw one of it: qemu-img convert -O raw {shown} disk.img"
    )))
}

/// Returns the name with `name_of` applied to the file.
pub(crate) fn with_file<E>(
    image: &Path,
    name_of: impl FnOnce(&Path) -> Result<PathBuf, E>,
) -> Result<PathBuf, E> {
    let file = file_of(image);
    let mut name = name_of(file)?.into_os_string().into_vec();
    let rest = &image.as_os_str().as_bytes()[file.as_os_str().len()..];
    name.extend_from_slice(rest);
    Ok(PathBuf::from(OsString::from_vec(name)))
}

/// What an image is.
pub(crate) enum Image<'a> {
    /// All of a file or device. A partition of a block device that has a node of its own is that
    /// device.
    Whole(Cow<'a, Path>),
    Part(Extent),
}

/// Finds out what an image is; reads the partition table for that.
pub(crate) fn find(image: &Path) -> Result<Image<'_>> {
    let Some((file, wish)) = split(image) else {
        if !qcow2::is_qcow2(image) {
            return Ok(Image::Whole(Cow::Borrowed(image)));
        }
        let size = length(image)?;
        return Ok(Image::Part(Extent {
            file: image.to_owned(),
            range: Range { offset: 0, size },
        }));
    };
    let shown = file.display();
    let meta = file.metadata().during(|| shown.to_string())?;
    let is_block = meta.file_type().is_block_device();
    if let (Wish::Partition(n), true) = (wish, is_block)
        && let Some(node) = partition_node(meta.rdev(), n)
    {
        return Ok(Image::Whole(Cow::Owned(node)));
    }
    let length = length(file)?;
    let range = match wish {
        Wish::Partition(n) => of_table(file, n)?,
        Wish::Offset(offset, size) => {
            let rest = length.checked_sub(offset).filter(|rest| *rest > 0);
            let rest = rest.ok_or_else(|| {
                let length = Size(length);
                Failure::new(format!(
                    "{shown} has {length}, and ends before byte {offset}"
                ))
            })?;
            // What follows a partition is no part of the volume in it.
            let partition = size.is_none().then(|| partitions(file).ok().flatten());
            let mut list = partition.flatten().unwrap_or_default().into_iter();
            let begins_here = list.find(|p| p.offset == offset).map(|p| p.size);
            let size = size.or(begins_here).unwrap_or(rest);
            Range { offset, size }
        }
    };
    if range.offset.saturating_add(range.size) > length {
        return Err(Failure::new(format!(
            "{}: it begins at byte {} with {}, and {shown} has only {}",
            image.display(),
            range.offset,
            Size(range.size),
            Size(length)
        ))
        .advise(crate::failure::TRUNCATED));
    }
    Ok(Image::Part(Extent {
        file: file.to_owned(),
        range,
    }))
}

/// Returns the range of an image in its file; all of the file if it cannot be found out.
pub(crate) fn range(image: &Path) -> Range {
    match find(image) {
        Ok(Image::Part(extent)) => extent.range,
        _ => Range::WHOLE,
    }
}

/// Looks a partition up in the table.
fn of_table(file: &Path, number: u32) -> Result<Range> {
    let shown = file.display();
    let Some(list) = partitions(file)? else {
        let holds = held(file)?.map_or_else(|| "nothing".to_owned(), |holds| holds.to_string());
        let what = format!("{shown} has no sound partition table: it holds {holds}");
        return Err(Failure::new(what));
    };
    match list.iter().find(|p| p.number == number) {
        Some(p) => Ok(Range {
            offset: p.offset,
            size: p.size,
        }),
        None => {
            let list = listed(&list);
            let what = format!("{shown} has no partition {number}, but these:{list}");
            Err(Failure::new(what))
        }
    }
}

/// Returns the partitions of a file or device; None if it has no table.
fn partitions(file: &Path) -> Result<Option<Vec<Partition>>> {
    Ok(held(file)?.and_then(|holds| match holds.kind {
        Kind::PartitionTable(_, list) => Some(list),
        _ => None,
    }))
}

/// Returns what a file or device holds, or the disk in it; `None` if it is empty or all zeros.
pub(crate) fn held(file: &Path) -> Result<Option<Holds>> {
    if qcow2::is_qcow2(file) {
        holds::what_on(&open_disk(file)?)
    } else {
        holds::what(file)
    }
}

/// Returns the length of a file or device, or of the disk in it, in bytes.
pub(crate) fn length(file: &Path) -> Result<u64> {
    if qcow2::is_qcow2(file) {
        Ok(open_disk(file)?.size())
    } else {
        holds::length(file)
    }
}

fn open_disk(file: &Path) -> Result<Qcow2> {
    let shown = || format!("{}, a disk in the format qcow2", file.display());
    let opened = Qcow2::open(file).during(shown);
    opened.or_advise(|| {
        let file = file.display();
        format!("where it is sound: qemu-img convert -O raw {file} disk.img")
    })
}

/// Returns the partitions, a line each.
pub(crate) fn listed(partitions: &[Partition]) -> String {
    let line = |p: &Partition| format!("\n     {p}");
    partitions.iter().map(line).collect()
}

/// Returns the node of a partition of a block device, if the kernel has read the table.
fn partition_node(device: u64, number: u32) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let parts = fs::read_dir(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let is_it = |dir: &PathBuf| {
        let text = fs::read_to_string(dir.join("partition")).unwrap_or_default();
        text.trim().parse() == Ok(number)
    };
    let dir = parts.flatten().map(|entry| entry.path()).find(is_it)?;
    let node = Path::new("/dev").join(dir.file_name()?);
    node.exists().then_some(node)
}

/// Gives an image the name of a part of it.
pub(crate) fn name(image: &mut PathBuf, wish: Wish) -> Result<()> {
    if is_part(image) {
        let shown = image.display();
        return Err(Failure::new(format!(
            "{shown} names a part already; leave out --partition and --offset"
        ))
        .exit(EXIT_USAGE));
    }
    let words = match wish {
        Wish::Partition(n) => format!("?partition={n}"),
        Wish::Offset(offset, _) => format!("?offset={offset}"),
    };
    image.as_mut_os_string().push(words);
    Ok(())
}

/// Opens the device of an image for writing, without the memory that may be beside it.
pub(crate) fn open_device(image: &Path) -> Result<Arc<dyn BlockDev>> {
    check_writable(image)?;
    Ok(match find(image)? {
        Image::Whole(image) => stetfs::open_device(&image, &MountOptions::default(), false)?,
        Image::Part(extent) => {
            let window = Window::open(extent, Use::Write, Some(false), Duration::ZERO)?;
            Arc::new(window)
        }
    })
}

/// Returns the name under which e2fsprogs find an image, without its part if it has one:
/// `FILE?offset=BYTES`.
pub(crate) fn for_e2fsprogs(image: &Path) -> Result<PathBuf> {
    check_writable(image)?;
    match find(image)? {
        Image::Whole(whole) => Ok(whole.into_owned()),
        Image::Part(Extent { file, range }) => {
            if file.as_os_str().as_bytes().contains(&b'?') {
                let shown = file.display();
                let failure = Failure::new(format!("{shown}: e2fsprogs take a ? for its end"));
                return Err(failure.advise("rename it, or use a loop device: losetup -fP"));
            }
            let mut name = file.into_os_string();
            name.push(format!("?offset={}", range.offset));
            Ok(name.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_the_last_question_mark() {
        let split = |name: &'static str| split(Path::new(name));
        let file = Path::new("/none/a?b");
        assert_eq!(
            split("/none/a?b?partition=2"),
            Some((file, Wish::Partition(2)))
        );
        let bytes = |size| Some((Path::new("x"), Wish::Offset(512, size)));
        assert_eq!(split("x?offset=512"), bytes(None));
        assert_eq!(split("x?offset=512&size=7"), bytes(Some(7)));
        for name in [
            "x?partition=0",
            "x?partition=",
            "x?offset=1M",
            "x?y",
            "?offset=1",
            "x",
        ] {
            assert_eq!(split(name), None, "{name}");
        }
        let dir = tempfile::tempdir().unwrap();
        let exists = dir.path().join("x?partition=1");
        fs::write(&exists, "").unwrap();
        assert!(!is_part(&exists));
    }

    #[test]
    fn ranges_overlap_in_bytes() {
        let range = |offset, size| Range { offset, size };
        assert!(range(0, 10).overlaps(range(9, 1)));
        assert!(!range(0, 10).overlaps(range(10, 5)));
        assert!(Range::WHOLE.overlaps(range(u64::MAX - 1, 1)));
        assert!(!range(5, 0).overlaps(range(6, 1)));
    }
}
