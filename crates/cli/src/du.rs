//! `stetfs du`: the space that files take, as du(1) counts it.

use std::collections::HashSet;

use serde::Serialize;

use crate::args::Du;
use crate::failure::{Explain, Failure, Result};
use crate::files::{Volumes, not_there};
use crate::image::Volume;
use crate::output;
use crate::place;
use crate::tree::{FileKind, Item, Meta, Tree, Walk, shown_below};

/// What `--json` prints of a file or directory with all that is in it.
#[derive(Serialize)]
struct Row<'a> {
    path: &'a str,
    /// Bytes, or the number of inodes.
    size: u64,
}

struct Counter<'a> {
    args: &'a Du,
    /// What was counted and may come again: the image, and the inode.
    counted: HashSet<(String, u64)>,
    json: output::JsonList,
    total: u64,
    failed: bool,
}

pub(crate) fn run(args: &Du) -> Result<()> {
    let mut counter = Counter {
        args,
        counted: HashSet::new(),
        json: output::JsonList::new(),
        total: 0,
        failed: false,
    };
    let mut volumes = Volumes::new(false);
    let all = volumes.each(&args.places, |volume, place| {
        let path = place.in_image().1;
        let file = volume
            .at(path, false)?
            .ok_or_else(|| not_there(volume, path))?;
        let size = counter.tree(volume, &mut Walk::new(volume), &*file, path, None, 0)?;
        counter.total += size;
        Ok(())
    });
    volumes.close()?;
    if args.total {
        let total = counter.total;
        counter.put(total, "total")?;
    }
    if args.json {
        counter.json.end()?;
    }
    all?;
    if counter.failed {
        return Err(Failure::said());
    }
    Ok(())
}

impl Counter<'_> {
    /// Counts a file, and what is in a directory. Tells what fails, and counts the rest.
    fn tree(
        &mut self,
        volume: &Volume,
        walk: &mut Walk,
        file: &dyn Item,
        path: &[u8],
        parent: Option<&dyn Item>,
        depth: usize,
    ) -> Result<u64> {
        let meta = file.meta()?;
        let is_dir = meta.kind == FileKind::Dir;
        let id = (volume.shown(b""), meta.id.1);
        // As du: of several places, what one has is not counted in the next.
        let may_recur = !is_dir && meta.nlink > 1 || self.args.places.len() > 1;
        if may_recur && !self.counted.insert(id) {
            return Ok(0);
        }
        let mut size = self.size_of(&meta);
        if is_dir {
            walk.enter(file, parent).during(|| file.shown())?;
            for name in file.names().during(|| file.shown())? {
                let below = place::join(path, &name);
                let counted = match file.child(&name) {
                    Ok(Some(child)) => {
                        self.tree(volume, walk, &*child, &below, Some(file), depth + 1)
                    }
                    Ok(None) => Ok(0),
                    Err(e) => Err(e.context(shown_below(file, &name))),
                };
                size += counted.unwrap_or_else(|e| {
                    e.tell();
                    self.failed = true;
                    0
                });
            }
            walk.leave();
        }
        let deepest = if self.args.summarize {
            0
        } else {
            self.args.max_depth.unwrap_or(usize::MAX)
        };
        if (is_dir || self.args.all || depth == 0) && depth <= deepest {
            self.put(size, &volume.shown(path))?;
        }
        Ok(size)
    }

    fn size_of(&self, meta: &Meta) -> u64 {
        if self.args.inodes {
            1
        } else if !self.args.bytes {
            meta.blocks.saturating_mul(512)
        } else if matches!(meta.kind, FileKind::File | FileKind::Symlink) {
            // As du: what else has no length of its own.
            meta.size
        } else {
            0
        }
    }

    fn put(&mut self, size: u64, path: &str) -> Result<()> {
        if self.args.json {
            return self.json.put(&Row { path, size });
        }
        let number = if self.args.human_readable {
            for_people(size)
        } else if self.args.bytes || self.args.inodes {
            size.to_string()
        } else {
            size.div_ceil(1024).to_string()
        };
        output::line(format_args!("{number}\t{path}"))
    }
}

/// Writes bytes as du -h does: rounded up, with one digit behind the point below 10.
fn for_people(size: u64) -> String {
    let mut unit = 1_u64;
    for letter in ["", "K", "M", "G", "T", "P", "E"] {
        let whole = size.div_ceil(unit);
        let tenths = (u128::from(size) * 10).div_ceil(u128::from(unit));
        if unit > 1 && tenths < 100 {
            return format!("{}.{}{letter}", tenths / 10, tenths % 10);
        }
        if whole < 1024 || letter == "E" {
            return format!("{whole}{letter}");
        }
        unit = unit.saturating_mul(1024);
    }
    size.to_string()
}

#[cfg(test)]
mod tests {
    use super::for_people;

    #[test]
    fn sizes_for_people_are_those_of_du() {
        // `numfmt --to=iec --round=up N`
        for (size, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_137, "9.9K"),
            (10_138, "10K"),
            (10_240, "10K"),
            (10_241, "11K"),
            (1_047_553, "1.0M"),
            (1 << 20, "1.0M"),
            (1_572_864, "1.5M"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(for_people(size), text, "{size}");
        }
    }
}
