//! An inode's attributes after changes that nobody has made yet: names, values, and whether there
//! is room for them.

use stetfs_format::xattr::Xattr;

use super::store::{Change, List, Lists, Places};
use crate::error::Result;
use crate::inode::{Inode, InodeState};
use crate::volume::Volume;

/// A copy of one attribute.
#[derive(Clone, PartialEq, Eq)]
struct Own {
    index: u8,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Own {
    fn of(xattr: &Xattr<'_>) -> Self {
        Self {
            index: xattr.index,
            name: xattr.name.to_vec(),
            value: xattr.value.to_vec(),
        }
    }

    fn as_xattr(&self) -> Xattr<'_> {
        Xattr {
            index: self.index,
            name: &self.name,
            value: &self.value,
        }
    }
}

/// The attributes of an inode, by where they would lie.
#[derive(Clone)]
pub(crate) struct View {
    inside: Vec<Own>,
    outside: Vec<Own>,
}

impl View {
    /// Copies the attributes as they are.
    pub(crate) fn of(vol: &Volume, inode: &Inode, st: &InodeState) -> Result<Self> {
        let places = Places::read(vol, inode, st)?;
        Ok(Self::copy(&places.lists(vol, inode, st)?))
    }

    fn copy(lists: &Lists<'_>) -> Self {
        let own = |list: &List<'_>| list.iter().map(Own::of).collect();
        Self {
            inside: own(&lists.inside),
            outside: own(&lists.outside),
        }
    }

    /// Makes a change, for an inode in state `st`. Returns true if the change writes a block of
    /// attributes.
    ///
    /// # Errors
    /// Those of the real change, except a full volume. The view has not changed then.
    pub(crate) fn make(
        &mut self,
        vol: &Volume,
        st: &InodeState,
        change: &Change<'_>,
    ) -> Result<bool> {
        let mut lists = Lists {
            inside: self.inside.iter().map(Own::as_xattr).collect(),
            outside: self.outside.iter().map(Own::as_xattr).collect(),
        };
        let Some(written) = lists.make(change, &st.raw, &vol.geo)? else {
            return Ok(false);
        };
        let now = Self::copy(&lists);
        drop(lists);
        *self = now;
        Ok(written.outside)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Xattr<'_>> {
        let all = self.inside.iter().chain(&self.outside);
        all.map(Own::as_xattr)
    }

    /// The value of an attribute.
    pub(crate) fn find(&self, index: u8, name: &[u8]) -> Option<&[u8]> {
        let mut all = self.iter();
        let found = all.find(|xattr| xattr.index == index && xattr.name == name);
        found.map(|xattr| xattr.value)
    }
}
