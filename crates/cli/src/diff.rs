//! `stetfs diff`: compares two trees, in images or on this machine.
//!
//! Both trees are walked together, by sorted names. Content is read only where one of the files has
//! data; what both have as holes is skipped.

use std::collections::HashMap;
use std::process::ExitCode;

use serde::Serialize;
use stetfs_format::width::{u64_as_usize, usize_as_u64};

use crate::args::{Aspect, Diff};
use crate::clock::utc;
use crate::copy::Host;
use crate::failure::{DAMAGED, Explain, Failure, Result};
use crate::files::{Volumes, not_there};
use crate::output;
use crate::place::{self, Place};
use crate::shown::shown;
use crate::tree::{FileKind, Item, Meta, Source, Stamp, Tree, Walk};

/// diff(1): the trees differ.
const EXIT_DIFFERENT: u8 = 1;
/// diff(1): trouble.
pub(crate) const EXIT_TROUBLE: u8 = 2;
/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// One difference. `a` and `b` are None where a file is missing.
#[derive(Serialize)]
struct Difference {
    /// The path below the two places; empty for the places themselves.
    path: String,
    /// `file`, `type`, `content`, `target`, `device`, `links`, `mode`, `owner`, `mtime`, or
    /// `xattr`.
    what: &'static str,
    /// The name of the attribute.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    a: Option<String>,
    b: Option<String>,
}

pub(crate) fn run(args: &Diff) -> Result<ExitCode> {
    compare(args).map_err(|f| f.exit(EXIT_TROUBLE))
}

fn compare(args: &Diff) -> Result<ExitCode> {
    let mut volumes = Volumes::new(false);
    for place in [&args.a, &args.b] {
        if is_image(place) {
            volumes.of(place)?;
        }
    }
    let host = Host;
    let tree = |place: &Place| -> &dyn Tree {
        if is_image(place) {
            volumes.opened(place)
        } else {
            &host
        }
    };
    let trees = [tree(&args.a), tree(&args.b)];
    let paths = [path_of(&args.a), path_of(&args.b)];
    let mut tops = Vec::new();
    for (tree, path) in trees.iter().zip(paths) {
        let top = tree.at(path, true).during(|| tree.shown(path))?;
        tops.push(top.ok_or_else(|| not_there(*tree, path))?);
    }
    let mut job = Job {
        args,
        walks: trees.map(Walk::new),
        links: [HashMap::new(), HashMap::new()],
        left: [trees[0].capacity()?, trees[1].capacity()?],
        buffers: [vec![0; CHUNK], vec![0; CHUNK]],
        json: output::JsonList::new(),
        found: false,
        failed: false,
    };
    job.pair([&*tops[0], &*tops[1]], None, b"")?;
    if args.json {
        job.json.end()?;
    }
    let (found, failed) = (job.found, job.failed);
    drop(job);
    drop(tops);
    volumes.close()?;
    if failed {
        return Err(Failure::said());
    }
    Ok(ExitCode::from(if found { EXIT_DIFFERENT } else { 0 }))
}

/// True if a place is in an image: a bare path is one if it is no directory.
fn is_image(place: &Place) -> bool {
    match place {
        Place::Image { .. } => true,
        Place::Host(path) => !path.is_dir(),
    }
}

fn path_of(place: &Place) -> &[u8] {
    match place {
        Place::Host(path) if path.is_dir() => path.as_os_str().as_encoded_bytes(),
        _ => place.in_image().1,
    }
}

type Pair<'a> = [&'a dyn Item; 2];

struct Job<'a> {
    args: &'a Diff,
    walks: [Walk; 2],
    /// For each tree the first path of each file that has several names.
    links: [HashMap<(u64, u64), Vec<u8>>; 2],
    /// Bytes that the files yet to come can hold: files of a sound image share no blocks.
    left: [u64; 2],
    buffers: [Vec<u8>; 2],
    json: output::JsonList,
    found: bool,
    failed: bool,
}

impl Job<'_> {
    fn ignores(&self, aspect: Aspect) -> bool {
        self.args.ignore.contains(&aspect)
    }

    /// Compares two files of the same path, and what is below them.
    fn pair(&mut self, pair: Pair<'_>, parents: Option<Pair<'_>>, path: &[u8]) -> Result<()> {
        let metas = [pair[0].meta()?, pair[1].meta()?];
        if metas[0].kind != metas[1].kind {
            let words = metas.map(|meta| meta.kind.word().to_owned());
            return self.tell(path, "type", words);
        }
        self.attributes(pair, &metas, path)?;
        match metas[0].kind {
            FileKind::Dir => self.dirs(pair, parents, path),
            FileKind::File if !self.ignores(Aspect::Content) => self.content(pair, &metas, path),
            FileKind::Symlink => {
                let targets = [pair[0].read_link()?, pair[1].read_link()?];
                self.unless_equal(path, "target", targets.map(|target| shown(&target)))
            }
            FileKind::Char | FileKind::Block => {
                let number = |meta: &Meta| format!("{}:{}", meta.rdev.0, meta.rdev.1);
                self.unless_equal(path, "device", [number(&metas[0]), number(&metas[1])])
            }
            _ => Ok(()),
        }
    }

    fn dirs(&mut self, pair: Pair<'_>, parents: Option<Pair<'_>>, path: &[u8]) -> Result<()> {
        for side in [0, 1] {
            let parent = parents.map(|parents| parents[side]);
            self.walks[side].enter(pair[side], parent)?;
        }
        let mut names = [pair[0].names()?, pair[1].names()?].concat();
        names.sort();
        names.dedup();
        for name in names {
            let below = match path {
                b"" => name.clone(),
                path => place::join(path, &name),
            };
            let done = self.children(pair, &name, &below);
            if let Err(e) = done {
                // As diff: one file that cannot be read keeps nobody from comparing the rest.
                e.context(shown(&below)).tell();
                self.failed = true;
            }
        }
        self.walks.iter_mut().for_each(Walk::leave);
        Ok(())
    }

    fn children(&mut self, pair: Pair<'_>, name: &[u8], path: &[u8]) -> Result<()> {
        let children = [pair[0].child(name)?, pair[1].child(name)?];
        match &children {
            [Some(a), Some(b)] => self.pair([&**a, &**b], Some(pair), path),
            [Some(a), None] => {
                let kind = a.meta()?.kind.word().to_owned();
                self.put(path, "file", None, [Some(kind), None])
            }
            [None, Some(b)] => {
                let kind = b.meta()?.kind.word().to_owned();
                self.put(path, "file", None, [None, Some(kind)])
            }
            [None, None] => Ok(()),
        }
    }

    fn attributes(&mut self, pair: Pair<'_>, metas: &[Meta; 2], path: &[u8]) -> Result<()> {
        let each = |words: fn(&Meta) -> String| [words(&metas[0]), words(&metas[1])];
        // A symbolic link has no mode of its own.
        if !self.ignores(Aspect::Mode) && metas[0].kind != FileKind::Symlink {
            self.unless_equal(path, "mode", each(|meta| format!("{:04o}", meta.mode)))?;
        }
        if !self.ignores(Aspect::Owner) {
            let owner = |meta: &Meta| format!("{}:{}", meta.uid, meta.gid);
            self.unless_equal(path, "owner", each(owner))?;
        }
        if !self.ignores(Aspect::Times) {
            self.unless_equal(path, "mtime", each(|meta| time(meta.mtime)))?;
        }
        if !self.ignores(Aspect::Links) && metas[0].kind != FileKind::Dir {
            let first = |side: usize| {
                let links = &mut self.links[side];
                match metas[side].nlink {
                    0 | 1 => String::new(),
                    _ => {
                        let first = links.entry(metas[side].id).or_insert_with(|| path.to_vec());
                        shown(first)
                    }
                }
            };
            let firsts = [0, 1].map(first);
            // A file that has further names elsewhere is like one that has none.
            let firsts = firsts.map(|first| {
                if first == shown(path) {
                    String::new()
                } else {
                    first
                }
            });
            self.unless_equal(path, "links", firsts)?;
        }
        if !self.ignores(Aspect::Xattrs) {
            self.xattrs(pair, path)?;
        }
        Ok(())
    }

    fn xattrs(&mut self, pair: Pair<'_>, path: &[u8]) -> Result<()> {
        let lists = [pair[0].xattrs()?, pair[1].xattrs()?];
        let mut names: Vec<&Vec<u8>> = lists.iter().flatten().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        for name in names {
            let values = [0, 1].map(|side| {
                let mut list = lists[side].iter();
                list.find(|(other, _)| other == name)
                    .map(|(_, value)| shown(value))
            });
            if values[0] != values[1] {
                self.put(path, "xattr", Some(shown(name)), values)?;
            }
        }
        Ok(())
    }

    fn content(&mut self, pair: Pair<'_>, metas: &[Meta; 2], path: &[u8]) -> Result<()> {
        // The content of a file is looked at under its first name.
        let seen = |side: usize| {
            let first = self.links[side].get(&metas[side].id);
            metas[side].nlink > 1 && first.is_some_and(|first| first != path)
        };
        if seen(0) && seen(1) {
            return Ok(());
        }
        let mut sources = [pair[0].open()?, pair[1].open()?];
        let sizes = [sources[0].size()?, sources[1].size()?];
        let mut at = 0;
        let differs = loop {
            let end = sizes[0].min(sizes[1]);
            let starts = [
                next_data(&mut *sources[0], at)?.unwrap_or(end),
                next_data(&mut *sources[1], at)?.unwrap_or(end),
            ];
            at = starts[0].min(starts[1]).min(end);
            if at == end {
                break (sizes[0] != sizes[1]).then_some(end);
            }
            let want = u64_as_usize((end - at).min(usize_as_u64(CHUNK)));
            for side in [0, 1] {
                let left = self.left[side].checked_sub(usize_as_u64(want));
                self.left[side] = left.ok_or_else(|| {
                    let what = "the files hold more than the whole image: some use the same blocks";
                    Failure::new(what).advise(DAMAGED)
                })?;
                fill(&mut *sources[side], at, &mut self.buffers[side][..want])?;
            }
            let (a, b) = (&self.buffers[0][..want], &self.buffers[1][..want]);
            if let Some(first) = a.iter().zip(b).position(|(a, b)| a != b) {
                break Some(at + usize_as_u64(first));
            }
            at += usize_as_u64(want);
        };
        match differs {
            None => Ok(()),
            Some(first) => {
                let words = |size| format!("{size} bytes, different from byte {first} on");
                self.tell(path, "content", sizes.map(words))
            }
        }
    }

    fn unless_equal(&mut self, path: &[u8], what: &'static str, words: [String; 2]) -> Result<()> {
        if words[0] == words[1] {
            return Ok(());
        }
        self.tell(path, what, words)
    }

    fn tell(&mut self, path: &[u8], what: &'static str, words: [String; 2]) -> Result<()> {
        self.put(path, what, None, words.map(Some))
    }

    fn put(
        &mut self,
        path: &[u8],
        what: &'static str,
        name: Option<String>,
        [a, b]: [Option<String>; 2],
    ) -> Result<()> {
        self.found = true;
        if self.args.json {
            return self.json.put(&Difference {
                path: String::from_utf8_lossy(path).into_owned(),
                what,
                name,
                a,
                b,
            });
        }
        let path = match path {
            b"" => ".".to_owned(),
            path => shown(path),
        };
        let (in_a, in_b) = (&self.args.a, &self.args.b);
        match (what, a, b) {
            ("file", Some(kind), _) => {
                output::line(format_args!("only in {in_a}: {path} ({kind})"))
            }
            ("file", _, kind) => {
                let kind = kind.unwrap_or_default();
                output::line(format_args!("only in {in_b}: {path} ({kind})"))
            }
            (_, a, b) => {
                let words = |side: Option<String>| match side {
                    Some(words) if words.is_empty() => "none".to_owned(),
                    Some(words) => words,
                    None => "none".to_owned(),
                };
                let name = name.map_or_else(String::new, |name| format!(" {name}"));
                output::line(format_args!(
                    "{path}: {what}{name}: {} | {}",
                    words(a),
                    words(b)
                ))
            }
        }
    }
}

fn time((sec, nsec): Stamp) -> String {
    format!("{}.{nsec:09}", utc(sec))
}

/// Returns where the next data begins, at `from` or later.
fn next_data(source: &mut dyn Source, from: u64) -> Result<Option<u64>> {
    Ok(source.next_data(from)?.map(|(start, _)| start.max(from)))
}

/// Reads until the buffer is full; what lies behind the end is zeros.
fn fill(source: &mut dyn Source, at: u64, out: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < out.len() {
        match source.read(at + usize_as_u64(done), &mut out[done..])? {
            0 => break,
            n => done += n,
        }
    }
    out[done..].fill(0);
    Ok(())
}
