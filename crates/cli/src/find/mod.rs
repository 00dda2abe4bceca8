//! `stetfs find`: files of an image that fit an expression of find(1).
//!
//! `expression.rs` has the language, `glob.rs` its patterns; this file walks the tree.

mod expression;
mod glob;

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::Serialize;

use crate::args::Find;
use crate::clock::utc;
use crate::failure::{EXIT_USAGE, Explain, Failure, Result};
use crate::files::{Volumes, not_there, permissions};
use crate::image::Volume;
use crate::output;
use crate::place::{self, Place};
use crate::shown::shown;
use crate::tree::{FileKind, Item, Tree, Walk, shown_below};
use expression::{Action, Expression, File};

/// What `--json` prints of a file. Times are seconds since 1970.
#[derive(Serialize)]
struct Found {
    path: String,
    kind: &'static str,
    inode: u64,
    /// Octal.
    mode: String,
    links: u64,
    uid: u32,
    gid: u32,
    size: u64,
    /// Bytes that it takes.
    space: u64,
    modified: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// Returns whether a word is a place, before the expression begins.
pub(crate) fn is_place(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    !(bytes.starts_with(b"-") || matches!(bytes, b"(" | b")" | b"!"))
}

pub(crate) fn run(args: &Find) -> Result<()> {
    let places = args.words.iter().take_while(|word| is_place(word)).count();
    let (places, words) = args.words.split_at(places);
    if places.is_empty() {
        let failure = Failure::new("find: no IMAGE is given before the expression");
        return Err(failure.exit(EXIT_USAGE));
    }
    let places: Vec<Place> = places.iter().cloned().map(Place::from).collect();
    let words: Vec<Vec<u8>> = words.iter().map(|word| word.clone().into_vec()).collect();
    let expression = Expression::parse(&words).map_err(|what| {
        let failure = Failure::new(format!("find: {what}")).exit(EXIT_USAGE);
        failure.advise("see the list of expressions: stetfs find --help")
    })?;
    if args.json && expression.has_action() {
        let failure = Failure::new("find: --json takes the place of -print, -print0 and -ls");
        return Err(failure.exit(EXIT_USAGE));
    }
    let mut volumes = Volumes::new(false);
    let mut finder = Finder {
        args,
        json: output::JsonList::new(),
        failed: false,
    };
    let all = volumes.each(&places, |volume, place| {
        let path = place.in_image().1;
        let file = volume
            .at(path, false)?
            .ok_or_else(|| not_there(volume, path))?;
        let mut expression = Expression::parse(&words).map_err(Failure::new)?;
        expression.resolve(volume)?;
        let mut walk = Walk::new(volume);
        finder.visit(&expression, volume, &mut walk, &*file, path, None, 0)
    });
    volumes.close()?;
    if args.json {
        finder.json.end()?;
    }
    all?;
    if finder.failed {
        return Err(Failure::said());
    }
    Ok(())
}

struct Finder<'a> {
    args: &'a Find,
    json: output::JsonList,
    failed: bool,
}

impl Finder<'_> {
    /// Judges a file, and what is below it. Tells what fails, and goes on.
    #[expect(clippy::too_many_arguments, reason = "what a walk knows of a file")]
    fn visit(
        &mut self,
        expression: &Expression,
        volume: &Volume,
        walk: &mut Walk,
        item: &dyn Item,
        path: &[u8],
        parent: Option<&dyn Item>,
        depth: usize,
    ) -> Result<()> {
        let meta = item.meta().during(|| item.shown())?;
        let printed = printed(volume, path);
        let name = match place::last_part(path) {
            b"" => b"/",
            name => name,
        };
        let file = File {
            item,
            meta: &meta,
            name,
            path: &printed,
        };
        let mut prunes = false;
        let is_deep_enough = depth >= expression.min_depth;
        if is_deep_enough && !expression.depth_first {
            prunes = self.judge(expression, &file)?;
        }
        if meta.kind == FileKind::Dir && !prunes && depth < expression.max_depth {
            walk.enter(item, parent).during(|| item.shown())?;
            for name in item.names().during(|| item.shown())? {
                let below = place::join(path, &name);
                let done = match item.child(&name) {
                    Ok(Some(child)) => {
                        let (child, above) = (&*child, Some(item));
                        self.visit(expression, volume, walk, child, &below, above, depth + 1)
                    }
                    Ok(None) => Ok(()),
                    Err(e) => Err(e.context(shown_below(item, &name))),
                };
                if let Err(e) = done {
                    e.tell();
                    self.failed = true;
                }
            }
            walk.leave();
        }
        if is_deep_enough && expression.depth_first {
            self.judge(expression, &file)?;
        }
        Ok(())
    }

    /// Does with a file what the expression says; returns whether it is pruned.
    fn judge(&mut self, expression: &Expression, file: &File<'_>) -> Result<bool> {
        let outcome = expression.judge(file).during(|| file.item.shown())?;
        for action in &outcome.actions {
            match action {
                Action::Print if self.args.json => self.json.put(&found(file)?)?,
                Action::Print => output::line(shown(file.path))?,
                Action::Print0 => output::write_all(&[file.path, b"\0"].concat())?,
                Action::List => output::line(listed(file)?)?,
            }
        }
        Ok(outcome.prunes)
    }
}

/// Returns a path as other commands take it: IMAGE:/PATH.
fn printed(volume: &Volume, path: &[u8]) -> Vec<u8> {
    let mut text = volume.name().as_os_str().as_bytes().to_vec();
    text.push(b':');
    text.extend_from_slice(path);
    text
}

fn found(file: &File<'_>) -> Result<Found> {
    let meta = file.meta;
    Ok(Found {
        path: String::from_utf8_lossy(file.path).into_owned(),
        kind: meta.kind.word(),
        inode: meta.id.1,
        mode: format!("{:04o}", meta.mode),
        links: meta.nlink,
        uid: meta.uid,
        gid: meta.gid,
        size: meta.size,
        space: meta.blocks.saturating_mul(512),
        modified: meta.mtime.0,
        target: target(file)?,
    })
}

/// Describes a file as `find -ls` does: inode, space in KiB, type and permissions, links, owner,
/// group, bytes, time, path.
fn listed(file: &File<'_>) -> Result<String> {
    let meta = file.meta;
    let size = match meta.kind {
        FileKind::Char | FileKind::Block => format!("{}, {}", meta.rdev.0, meta.rdev.1),
        _ => meta.size.to_string(),
    };
    let target = target(file)?.map_or_else(String::new, |target| format!(" -> {target}"));
    Ok(format!(
        "{:>9} {:>6} {} {:>3} {:>5} {:>5} {size:>10} {} {}{target}",
        meta.id.1,
        meta.blocks.div_ceil(2),
        permissions(meta),
        meta.nlink,
        meta.uid,
        meta.gid,
        utc(meta.mtime.0),
        shown(file.path),
    ))
}

fn target(file: &File<'_>) -> Result<Option<String>> {
    match file.meta.kind {
        FileKind::Symlink => Ok(Some(shown(&file.item.read_link()?))),
        _ => Ok(None),
    }
}
