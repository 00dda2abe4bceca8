//! Attributes: extended ones, access lists, mode, owner, times.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::{Id, Model, Node, S_IFDIR, S_IFLNK, S_IFREG};
use crate::world::acl::Acl;
use crate::world::op::{Payload, XattrHow};
use crate::world::{Moment, Outcome, Reply};

const ACL_ACCESS: &str = "system.posix_acl_access";
const ACL_DEFAULT: &str = "system.posix_acl_default";

impl Model {
    /// Checks whether files can have this attribute at all (`xattr_permission`,
    /// `xattr_resolve_name`).
    fn check_xattr(&self, id: Id, name: &str, refused: Errno) -> Result<(), Errno> {
        let plain = matches!(self.node(id).kind, S_IFREG | S_IFDIR);
        if name.starts_with("user.") && !plain {
            return Err(refused);
        }
        if name == "user." {
            Err(Errno::INVAL)
        } else {
            Ok(())
        }
    }

    pub(super) fn set_xattr(
        &mut self,
        path: &str,
        name: &str,
        value: Payload,
        how: XattrHow,
    ) -> Outcome {
        let id = self.at(path)?;
        self.check_xattr(id, name, Errno::PERM)?;
        match (how, self.node(id).xattrs.contains_key(name)) {
            (XattrHow::Create, true) => return Err(Errno::EXIST),
            (XattrHow::Replace, false) => return Err(Errno::NODATA),
            _ => {}
        }
        let value = value.bytes();
        if self.node(id).xattrs.get(name) != Some(&value) {
            self.touch(id).xattrs.insert(name.to_owned(), value);
        }
        Ok(Reply::Done)
    }

    pub(super) fn get_xattr(&self, path: &str, name: &str) -> Outcome {
        let id = self.at(path)?;
        self.check_xattr(id, name, Errno::NODATA)?;
        let value = self.node(id).xattrs.get(name).ok_or(Errno::NODATA)?;
        Ok(Reply::Bytes(value.clone()))
    }

    pub(super) fn remove_xattr(&mut self, path: &str, name: &str) -> Outcome {
        let id = self.at(path)?;
        self.check_xattr(id, name, Errno::PERM)?;
        if !self.node(id).xattrs.contains_key(name) {
            return Err(Errno::NODATA);
        }
        self.touch(id).xattrs.remove(name);
        Ok(Reply::Done)
    }

    pub(super) fn set_acl(&mut self, path: &str, default: bool, acl: Option<&Acl>) -> Outcome {
        let id = self.at(path)?;
        if self.node(id).kind == S_IFLNK {
            return Err(Errno::OPNOTSUPP);
        }
        if default && !self.is_dir(id) {
            return if acl.is_some() {
                Err(Errno::ACCESS)
            } else {
                Ok(Reply::Done)
            };
        }
        let node = self.node(id);
        let before = (node.mode, node.acl.clone(), node.default_acl.clone());
        let mut after = before.clone();
        if default {
            after.2 = acl.cloned();
        } else {
            if let Some(acl) = acl {
                after.0 = after.0 & !0o777 | acl.mode();
            }
            after.1 = acl.filter(|acl| !acl.is_mode_only()).cloned();
        }
        if after != before {
            let node = self.touch(id);
            (node.mode, node.acl, node.default_acl) = after;
        }
        Ok(Reply::Done)
    }

    pub(super) fn chmod(&mut self, path: &str, mode: u16) -> Outcome {
        let id = self.followed(path)?;
        self.set_mode(id, mode);
        Ok(Reply::Done)
    }

    pub(super) fn set_mode(&mut self, id: Id, mode: u16) {
        let node = self.touch(id);
        node.mode = mode & 0o7777;
        if let Some(acl) = &mut node.acl {
            acl.chmod(mode);
        }
    }

    pub(super) fn chown(&mut self, path: &str, uid: Option<u32>, gid: Option<u32>) -> Outcome {
        let id = self.at(path)?;
        self.set_owner(id, uid, gid);
        Ok(Reply::Done)
    }

    pub(super) fn set_owner(&mut self, id: Id, uid: Option<u32>, gid: Option<u32>) {
        let node = self.touch(id);
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        if node.kind != S_IFDIR {
            let group_executes = node.mode & 0o010 != 0;
            node.mode &= if group_executes { !0o6000 } else { !0o4000 };
        }
    }

    pub(super) fn utimes(&mut self, path: &str, atime: Moment, mtime: Moment) -> Outcome {
        let id = self.at(path)?;
        let fine = self.rules.fine_times;
        let kept = |(sec, nsec)| if fine { (sec, nsec) } else { (sec, 0) };
        let node = self.touch(id);
        node.atime = Some(kept(atime));
        node.mtime = Some(kept(mtime));
        Ok(Reply::Done)
    }

    pub(super) fn list_xattr(&self, path: &str) -> Outcome {
        let mut names: Vec<_> = self
            .node(self.at(path)?)
            .all_xattrs()
            .into_keys()
            .map(|name| (name, 0))
            .collect();
        names.sort();
        Ok(Reply::Names(names))
    }
}

impl Node {
    /// Returns the attributes, ACLs among them, as listxattr shows them.
    pub(super) fn all_xattrs(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let plain = self
            .xattrs
            .iter()
            .map(|(name, value)| (name.clone().into_bytes(), value.clone()));
        let access = self.acl.iter().map(|acl| (ACL_ACCESS.into(), acl.encode()));
        let default = self
            .default_acl
            .iter()
            .map(|acl| (ACL_DEFAULT.into(), acl.encode()));
        plain.chain(access).chain(default).collect()
    }
}
