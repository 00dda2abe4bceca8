//! Layers of a container image, one over the other: what a layer says of those below it.
//!
//! Source: OCI image format specification 1.1, "Image Layer Filesystem Changeset" (layer.md):
//! - `.wh.NAME` says that NAME of a lower layer is gone; `.wh..wh..opq` says so of everything that
//!   lower layers have in its directory. Neither hides what its own layer has.
//! - A directory over a directory replaces its attributes; everything else replaces what was there.
//!
//! Names beginning with `.wh..wh.` are AUFS' own and mean nothing (containerd and Docker pass over
//! them too). Where a lower layer has a symbolic link, names of a layer lead through it, as they do
//! for a program whose root directory this is: images whose `/lib` is a link get files below
//! `lib/` from tools that do not know it.

use std::fs::File;

use super::members::{Entries, Entry};
use super::{Archive, ROOT, parts};
use crate::failure::{Failure, Result};
use crate::shown::shown;
use crate::tree::Stamp;

/// Before a name: it is gone.
const GONE: &[u8] = b".wh.";
/// Before a name: it means nothing, apart from the next one.
const OWN: &[u8] = b".wh..wh.";
/// Everything of lower layers is gone from this directory.
const ALL_GONE: &[u8] = b".wh..wh..opq";

impl Archive {
    /// Lays one layer over the other.
    pub(super) fn lay_all(&mut self, layers: Vec<File>, time: Stamp) -> Result<()> {
        let all = layers.len();
        for (n, layer) in layers.into_iter().enumerate() {
            let laid = self.lay(layer, time);
            laid.map_err(|e| e.context(format!("layer {} of {all}", n + 1)))?;
        }
        Ok(())
    }

    fn lay(&mut self, layer: File, time: Stamp) -> Result<()> {
        let reader = layer.try_clone()?;
        self.files.push(layer);
        self.is_layered = true;
        // All that is gone first: the order within a layer means nothing.
        each(&reader, |_, name, dirs| {
            if !name.starts_with(GONE) {
                return Ok(());
            }
            self.take_away(name, dirs)
        })?;
        each(&reader, |member, name, _| {
            if name.starts_with(GONE) {
                return Ok(());
            }
            self.add(member, time)
        })?;
        // AUFS has files there to which others of the layer are links.
        let names = self.nodes[ROOT].names.keys();
        let own: Vec<_> = names
            .filter(|name| name.starts_with(OWN))
            .cloned()
            .collect();
        for name in own {
            if let Some(gone) = self.nodes[ROOT].names.remove(&name) {
                self.drop_name(gone);
            }
        }
        Ok(())
    }

    fn take_away(&mut self, name: &[u8], dirs: &[&[u8]]) -> Result<()> {
        if name == GONE {
            return Err(Failure::new("does not say what is gone"));
        }
        let Some(dir) = self.find(dirs, true)? else {
            return Ok(());
        };
        if name == ALL_GONE {
            self.clear(dir);
        } else if !name.starts_with(OWN)
            && let Some(gone) = self.nodes[dir].names.remove(&name[GONE.len()..])
        {
            self.drop_name(gone);
        }
        Ok(())
    }

    /// Takes every name out of a directory.
    fn clear(&mut self, dir: usize) {
        for gone in std::mem::take(&mut self.nodes[dir].names).into_values() {
            self.drop_name(gone);
        }
    }
}

/// Calls `then` with each member of an archive, its last name, and those before it.
fn each(file: &File, mut then: impl FnMut(&Entry, &[u8], &[&[u8]]) -> Result<()>) -> Result<()> {
    let mut members = Entries::of(file)?;
    while let Some(member) = members.next()? {
        let done = parts(&member.name).and_then(|parts| match parts.split_last() {
            Some((name, dirs)) => then(&member, name, dirs),
            None => then(&member, b"", &[]),
        });
        done.map_err(|e| e.context(format!("member {}", shown(&member.name))))?;
    }
    Ok(())
}
