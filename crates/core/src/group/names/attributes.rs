//! Attributes in a group: extended attributes, with ACLs among them, and what a change of mode or
//! owner does to these.
//!
//! Each step is tried on a copy of the file's attributes ([`View`]). This shows what the group
//! sees, whether there is room, and what the step takes. The commit tries all steps again, on the
//! attributes that the file has then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stetfs_format::{BlockNo, InodeNo};

use super::cost::Takes;
use super::step::{Name, Step, Xattrs};
use super::{At, Names};
use crate::acl::{self, Kind};
use crate::attr::ATTR_CREDITS;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::types::{Caller, SetAttr, SetXattr};
use crate::volume::Volume;
use crate::xattr;
use crate::xattr::store::Change;
use crate::xattr::view::View;

impl Names {
    /// Stages a new value of an extended attribute, or its removal.
    pub(super) fn set_xattr(
        &mut self,
        at: &At<'_>,
        ino: InodeNo,
        name: &[u8],
        value: Option<&[u8]>,
        how: SetXattr,
    ) -> Result<Arc<Inode>> {
        let inode = self.inode(at.vol, ino)?;
        let (index, suffix) = xattr::check_change(at.vol, at.c, &inode, name, value)?;
        let value = value.map(<[u8]>::to_vec);
        self.dress(
            at,
            &inode,
            Step::Xattr(ino, (index, suffix.to_vec()), value),
            how,
        )?;
        Ok(inode)
    }

    /// Stages changes of attributes, except the size.
    pub(super) fn set_attributes(
        &mut self,
        at: &At<'_>,
        ino: InodeNo,
        set: &SetAttr,
    ) -> Result<Arc<Inode>> {
        let inode = self.inode(at.vol, ino)?;
        let set = SetAttr {
            size: None,
            through_handle: false,
            kill_suid: false,
            ..set.clone()
        };
        if set != SetAttr::default() {
            self.dress(at, &inode, Step::Set(ino, set), SetXattr::Any)?;
        }
        Ok(inode)
    }

    fn dress(&mut self, at: &At<'_>, inode: &Arc<Inode>, step: Step, how: SetXattr) -> Result<()> {
        self.keep(inode)?;
        let tried = if step.changes_xattrs() {
            Some(self.try_step(at, inode, &step, how)?)
        } else {
            None
        };
        let rewrites = tried.as_ref().map_or(0, |(_, rewrites)| *rewrites);
        let takes = Takes {
            inodes: &[inode],
            xattrs: (xattr_block(inode).filter(|_| rewrites > 0), rewrites),
            asks: ATTR_CREDITS,
            ..Takes::default()
        };
        self.charge(at, &takes)?;
        if let Some((xattrs, _)) = tried {
            self.xattrs.insert(inode.ino, xattrs);
        }
        self.note(at, step);
        Ok(())
    }

    /// Returns the file's attributes after the step, and how many times the step writes their
    /// block.
    fn try_step(
        &self,
        at: &At<'_>,
        inode: &Inode,
        step: &Step,
        how: SetXattr,
    ) -> Result<(Xattrs, u32)> {
        let mut xattrs = match self.xattrs.get(&inode.ino) {
            Some(xattrs) => xattrs.clone(),
            None => {
                let base = View::of(at.vol, inode, &inode.state.read())?;
                Xattrs {
                    now: base.clone(),
                    base,
                    named: BTreeSet::new(),
                }
            }
        };
        let rewrites = try_out(at.vol, at.c, inode, &mut xattrs.now, step, how)?;
        if let Step::Xattr(_, name, _) = step {
            xattrs.named.insert(name.clone());
        }
        Ok((xattrs, rewrites))
    }

    /// The file's extended attributes in the group; `None` if the group changes none.
    pub(in crate::group) fn xattrs(&self, ino: InodeNo) -> Option<&View> {
        Some(&self.xattrs.get(&ino)?.now)
    }

    /// Checks that the attributes which steps name have not changed outside, and that there is room
    /// for all changes; counts their credits anew.
    pub(super) fn check_xattrs(&mut self, vol: &Volume) -> Result<()> {
        let mut views = BTreeMap::new();
        for (ino, xattrs) in &self.xattrs {
            let inode = self.inode(vol, *ino)?;
            let now = View::of(vol, &inode, &inode.state.read())?;
            let is_known =
                |(index, name): &Name| now.find(*index, name) == xattrs.base.find(*index, name);
            if !xattrs.named.iter().all(is_known) {
                return Err(Error::Conflict(*ino));
            }
            views.insert(*ino, (inode, now));
        }
        self.cost.rewrites = 0;
        for (c, step) in &self.steps {
            let (Step::Set(ino, _) | Step::Xattr(ino, ..)) = step else {
                continue;
            };
            let Some((inode, view)) = views.get_mut(ino) else {
                continue;
            };
            let rewrites = try_out(vol, c, inode, view, step, SetXattr::Any)?;
            if rewrites > 0 {
                self.cost.rewrites += rewrites;
                self.cost.blocks.extend(xattr_block(inode));
            }
        }
        Ok(())
    }
}

/// The block of the inode's attributes, if it has one.
fn xattr_block(inode: &Inode) -> Option<BlockNo> {
    let block = inode.state.read().raw.file_acl;
    (block.0 != 0).then_some(block)
}

/// Does a step to a copy of the file's attributes. Returns how many times it writes their block.
fn try_out(
    vol: &Volume,
    c: &Caller,
    inode: &Inode,
    view: &mut View,
    step: &Step,
    how: SetXattr,
) -> Result<u32> {
    let st = inode.state.read();
    let mut rewrites = 0;
    let mut make = |(index, name), value: Option<&[u8]>, how, view: &mut View| {
        let change = Change {
            index,
            name,
            value,
            how,
            privileged: false,
        };
        rewrites += u32::from(view.make(vol, &st, &change)?);
        Ok::<_, Error>(())
    };
    match step {
        Step::Xattr(_, (index, name), value) => {
            let name = (*index, &name[..]);
            match Kind::of_index(*index) {
                None => make(name, value.as_deref(), how, view)?,
                // For an ACL, no caller says whether it must exist.
                Some(kind) => {
                    let list = acl::New::checked(c, &st, kind, value.as_deref())?.encode();
                    make(name, list.as_deref(), SetXattr::Any, view)?;
                }
            }
        }
        Step::Set(_, set) => {
            if (set.uid.is_some() || set.gid.is_some()) && !st.is_dir() {
                make(xattr::CAPABILITY, None, SetXattr::Any, view)?;
            }
            let list = (Kind::Access.index(), &b""[..]);
            if let Some(bits) = set.mode
                && vol.opts.acl
                && let Some(acl) = acl::decode(inode, view.find(list.0, list.1))?
            {
                let acl = acl::with_mode(&acl, bits)?.encode_disk();
                make(list, Some(&acl), SetXattr::Any, view)?;
            }
        }
        Step::Name(..) | Step::Remove(..) | Step::Rename(..) => {}
    }
    Ok(rewrites)
}
