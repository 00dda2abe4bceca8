//! POSIX ACLs as the model keeps them, after POSIX.1e draft 17 and the kernel's `fs/posix_acl.c`.

/// Tags of entries as in the xattr representation (`linux/posix_acl.h`).
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const UNDEFINED: u32 = u32::MAX;
const VERSION: u32 = 2;

/// An access control list. Permissions are 3 bits (4 read, 2 write, 1 execute).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// The owner's permissions.
    pub owner: u8,
    /// Named users (id, permissions), ids ascending.
    pub users: Vec<(u32, u8)>,
    /// The owning group's permissions.
    pub group: u8,
    /// Named groups, ids ascending.
    pub groups: Vec<(u32, u8)>,
    /// The upper bound for everybody except the owner and others; required if any user or group is
    /// named.
    pub mask: Option<u8>,
    /// Everybody else's permissions.
    pub other: u8,
}

impl Acl {
    /// Returns the value of `system.posix_acl_access` or `system.posix_acl_default` (version 2,
    /// little endian).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        let mut entry = |tag: u16, perm: u8, id: u32| {
            out.extend(tag.to_le_bytes());
            out.extend(u16::from(perm).to_le_bytes());
            out.extend(id.to_le_bytes());
        };
        entry(USER_OBJ, self.owner, UNDEFINED);
        for (id, perm) in &self.users {
            entry(USER, *perm, *id);
        }
        entry(GROUP_OBJ, self.group, UNDEFINED);
        for (id, perm) in &self.groups {
            entry(GROUP, *perm, *id);
        }
        if let Some(mask) = self.mask {
            entry(MASK, mask, UNDEFINED);
        }
        entry(OTHER, self.other, UNDEFINED);
        out
    }

    /// Whether the permission bits express the whole list (`posix_acl_equiv_mode`): then it is not
    /// stored.
    pub fn is_mode_only(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && self.mask.is_none()
    }

    /// The permission bits that represent the list.
    pub fn mode(&self) -> u16 {
        let middle = self.mask.unwrap_or(self.group);
        u16::from(self.owner) << 6 | u16::from(middle) << 3 | u16::from(self.other)
    }

    /// Changes the list as chmod does (`posix_acl_chmod`).
    pub fn chmod(&mut self, mode: u16) {
        self.owner = (mode >> 6 & 7) as u8;
        *self.mask.as_mut().unwrap_or(&mut self.group) = (mode >> 3 & 7) as u8;
        self.other = (mode & 7) as u8;
    }

    /// Applies a default ACL to a new file of mode `mode` (`posix_acl_create_masq`). Returns the
    /// file's permission bits.
    pub fn masquerade(&mut self, mode: u16) -> u16 {
        self.owner &= (mode >> 6 & 7) as u8;
        *self.mask.as_mut().unwrap_or(&mut self.group) &= (mode >> 3 & 7) as u8;
        self.other &= (mode & 7) as u8;
        mode & !0o777 | self.mode()
    }
}
