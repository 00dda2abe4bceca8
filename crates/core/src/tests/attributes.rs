//! Attributes: permissions, set-ID bits, times, extended attributes, ACLs, flags. The expected
//! answers are those of the kernel's ext4.

use crate::testing::{Image, KINDS};
use crate::{Access, Caller, Error, OpenFlags, SetAttr, SetTime, SetXattr, WriteFlags};
use stetfs_format::{InodeFlags, Time};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn mode(bits: u16) -> SetAttr {
    SetAttr {
        mode: Some(bits),
        ..SetAttr::default()
    }
}

fn owner(uid: u32, gid: u32) -> SetAttr {
    SetAttr {
        uid: Some(uid),
        gid: Some(gid),
        ..SetAttr::default()
    }
}

macro_rules! refused {
    ($result:expr, $error:ident) => {{
        let result = $result;
        assert!(matches!(result, Err(Error::$error)), "{result:?}");
    }};
}

#[test]
fn ownership_decides() {
    let image = Image::new(16, &["-t", "ext4"]);
    let fs = image.mount("");
    let root = Caller::root();
    let mut alice = Caller::user(1000, 1000);
    alice.groups.push(2000);
    let bob = Caller::user(1001, 1001);
    let ino = fs.create(&root, fs.root(), b"f", 0o644, RW).unwrap().ino;
    fs.setattr(&root, ino, &owner(1000, 1000)).unwrap();

    refused!(fs.setattr(&bob, ino, &mode(0o777)), NotPermitted);
    refused!(fs.setattr(&alice, ino, &owner(1001, 1000)), NotPermitted);
    refused!(fs.setattr(&alice, ino, &owner(1000, 1001)), NotPermitted);
    fs.setattr(&alice, ino, &owner(1000, 2000)).unwrap();
    fs.setattr(&alice, ino, &mode(0o2755)).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().mode, 0o102755);
    // Set-group-ID needs membership.
    fs.setattr(&root, ino, &owner(1000, 3000)).unwrap();
    let attr = fs.setattr(&alice, ino, &mode(0o2755)).unwrap();
    assert_eq!(attr.mode, 0o100755);

    let set = SetAttr {
        mtime: Some(SetTime::At(Time { sec: 5, nsec: 7 })),
        ..SetAttr::default()
    };
    refused!(fs.setattr(&bob, ino, &set), NotPermitted);
    let now = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    refused!(fs.setattr(&bob, ino, &now), Access);
    fs.setattr(&root, ino, &mode(0o666)).unwrap();
    fs.setattr(&bob, ino, &now).unwrap();
    assert_eq!(
        fs.setattr(&alice, ino, &set).unwrap().mtime,
        Time { sec: 5, nsec: 7 }
    );
    refused!(
        fs.setattr(
            &bob,
            ino,
            &SetAttr {
                size: Some(0),
                mode: Some(0),
                ..SetAttr::default()
            }
        ),
        NotPermitted
    );
    fs.setattr(
        &bob,
        ino,
        &SetAttr {
            size: Some(9),
            ..SetAttr::default()
        },
    )
    .unwrap();
    fs.setattr(&root, ino, &mode(0o600)).unwrap();
    refused!(
        fs.setattr(
            &bob,
            ino,
            &SetAttr {
                size: Some(0),
                ..SetAttr::default()
            }
        ),
        Access
    );
    refused!(fs.access(&bob, ino, Access::READ), Access);
    fs.release(ino).unwrap();
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn set_id_bits_go_when_content_or_owner_changes() {
    let image = Image::new(16, &["-t", "ext4"]);
    let fs = image.mount("");
    let root = Caller::root();
    let alice = Caller::user(1000, 1000);
    let ino = fs.create(&root, fs.root(), b"f", 0o777, RW).unwrap().ino;
    let bits = |fs: &crate::Fs| fs.getattr(ino).unwrap().mode & 0o7777;
    let arm = |fs: &crate::Fs, m: u16| {
        fs.setattr(&root, ino, &mode(m)).unwrap();
        fs.setxattr(&root, ino, b"security.capability", b"caps", SetXattr::Any)
            .unwrap();
    };
    let has_caps = |fs: &crate::Fs| fs.getxattr(&root, ino, b"security.capability").is_ok();

    arm(&fs, 0o6777);
    // Every write takes the capabilities away; root's leaves the set-ID bits.
    fs.write(&root, ino, 0, b"x").unwrap();
    assert!(bits(&fs) == 0o6777 && !has_caps(&fs));
    arm(&fs, 0o6777);
    let cut = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    fs.setattr(&root, ino, &cut).unwrap();
    assert!(bits(&fs) == 0o6777 && !has_caps(&fs));
    arm(&fs, 0o6777);
    fs.write(&alice, ino, 0, b"x").unwrap();
    assert!(bits(&fs) == 0o777 && !has_caps(&fs));
    // Without group execute permission, set-group-ID means mandatory locking. It stays when a
    // member of the group writes.
    arm(&fs, 0o6767);
    fs.write(&Caller::user(1000, 0), ino, 0, b"x").unwrap();
    assert_eq!(bits(&fs), 0o2767);
    fs.write(&alice, ino, 0, b"x").unwrap();
    assert_eq!(bits(&fs), 0o767);
    arm(&fs, 0o6777);
    fs.write_with(&root, ino, 0, b"x", WriteFlags::KILL_SUID)
        .unwrap();
    assert!(bits(&fs) == 0o777 && !has_caps(&fs));
    arm(&fs, 0o6777);
    fs.setattr(
        &alice,
        ino,
        &SetAttr {
            size: Some(0),
            ..SetAttr::default()
        },
    )
    .unwrap();
    assert!(bits(&fs) == 0o777 && !has_caps(&fs));
    // A change of owner clears the set-ID bits, for root too, but not on a directory.
    arm(&fs, 0o6777);
    fs.setattr(&root, ino, &owner(5, 5)).unwrap();
    assert!(bits(&fs) == 0o777 && !has_caps(&fs));
    let dir = fs.mkdir(&root, fs.root(), b"d", 0o755).unwrap().ino;
    fs.setattr(&root, dir, &mode(0o6777)).unwrap();
    fs.setattr(&root, dir, &owner(5, 5)).unwrap();
    assert_eq!(fs.getattr(dir).unwrap().mode, 0o046777);
    fs.release(ino).unwrap();
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn xattrs_move_between_inode_and_block() {
    for (kind, args) in KINDS {
        let image = Image::new(16, args);
        let c = Caller::root();
        let fs = image.mount("");
        let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
        let mut expected: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for i in 0..12u8 {
            let name = format!("user.name{i}").into_bytes();
            let value = vec![i; usize::from(i) * 5];
            fs.setxattr(&c, ino, &name, &value, SetXattr::Create)
                .unwrap();
            expected.push((name, value));
        }
        // The attribute grows out of the inode, shrinks, and is removed.
        expected[0].1 = vec![9; 300];
        fs.setxattr(&c, ino, b"user.name0", &[9; 300], SetXattr::Replace)
            .unwrap();
        expected[3].1 = vec![];
        fs.setxattr(&c, ino, b"user.name3", b"", SetXattr::Any)
            .unwrap();
        fs.removexattr(&c, ino, b"user.name5").unwrap();
        expected.remove(5);
        fs.setxattr(&c, ino, b"trusted.t", b"1", SetXattr::Any)
            .unwrap();
        expected.push((b"trusted.t".to_vec(), b"1".to_vec()));
        let check = |fs: &crate::Fs| {
            let ino = fs.resolve(&c, b"/f", true).unwrap().ino;
            for (name, value) in &expected {
                assert_eq!(&fs.getxattr(&c, ino, name).unwrap(), value, "{kind}");
            }
            let list = fs.listxattr(&c, ino).unwrap();
            let mut names: Vec<&[u8]> = list.split(|&b| b == 0).filter(|n| !n.is_empty()).collect();
            names.sort();
            let mut wanted: Vec<&[u8]> = expected.iter().map(|(n, _)| n.as_slice()).collect();
            wanted.sort();
            assert_eq!(names, wanted, "{kind}");
            let seen = fs.listxattr(&Caller::user(1, 1), ino).unwrap();
            assert!(!seen.windows(7).any(|w| w == b"trusted"));
        };
        check(&fs);
        refused!(
            fs.setxattr(&c, ino, b"user.name1", b"", SetXattr::Create),
            Exists
        );
        refused!(
            fs.setxattr(&c, ino, b"user.nope", b"", SetXattr::Replace),
            NoData
        );
        refused!(fs.getxattr(&c, ino, b"user.nope"), NoData);
        refused!(fs.removexattr(&c, ino, b"user.nope"), NoData);
        refused!(fs.setxattr(&c, ino, b"user.", b"", SetXattr::Any), Invalid);
        // A C string has no NUL, and a list of names with one in it would be ambiguous.
        refused!(
            fs.setxattr(&c, ino, b"user.x\0y", b"", SetXattr::Any),
            Invalid
        );
        refused!(
            fs.setxattr(&c, ino, b"os2.x", b"", SetXattr::Any),
            NotSupported
        );
        refused!(
            fs.setxattr(
                &c,
                ino,
                &[b"user.".as_slice(), &[b'x'; 251]].concat(),
                b"",
                SetXattr::Any
            ),
            Range
        );
        refused!(
            fs.setxattr(&c, ino, b"user.big", &vec![0; 65_537], SetXattr::Any),
            ArgTooBig
        );
        refused!(
            fs.setxattr(&c, ino, b"user.big", &vec![0; 4096], SetXattr::Any),
            NoSpace
        );
        refused!(
            fs.setxattr(&Caller::user(1, 1), ino, b"trusted.x", b"", SetXattr::Any),
            NotPermitted
        );
        refused!(fs.getxattr(&Caller::user(1, 1), ino, b"trusted.t"), NoData);
        refused!(
            fs.setxattr(&Caller::user(1, 1), ino, b"user.x", b"", SetXattr::Any),
            Access
        );
        check(&fs);
        fs.release(ino).unwrap();
        fs.unmount().unwrap();
        image.assert_clean();
        let fs = image.mount("");
        check(&fs);
        fs.unlink(&c, fs.root(), b"f").unwrap();
        fs.unmount().unwrap();
        image.assert_clean();
        image.on_kernel("", |_| ());
    }
}

#[test]
fn equal_attribute_blocks_are_shared_and_counted() {
    let image = Image::new(16, &["-t", "ext4", "-b", "1024", "-I", "128"]);
    let c = Caller::root();
    let fs = image.mount("");
    let free = fs.statfs().unwrap().blocks_free;
    let names: Vec<String> = (0..40).map(|i| format!("f{i}")).collect();
    for name in &names {
        let ino = fs
            .create(&c, fs.root(), name.as_bytes(), 0o644, RW)
            .unwrap()
            .ino;
        fs.setxattr(&c, ino, b"user.same", &[7; 200], SetXattr::Any)
            .unwrap();
        fs.release(ino).unwrap();
    }
    assert_eq!(fs.statfs().unwrap().blocks_free, free - 1);
    let ino = |fs: &crate::Fs, name: &str| fs.lookup(&c, fs.root(), name.as_bytes()).unwrap().ino;
    // One inode changes its attribute and gets its own block. Changed back, it shares again.
    fs.setxattr(&c, ino(&fs, "f3"), b"user.same", &[8; 200], SetXattr::Any)
        .unwrap();
    assert_eq!(fs.statfs().unwrap().blocks_free, free - 2);
    assert_eq!(
        fs.getxattr(&c, ino(&fs, "f4"), b"user.same").unwrap(),
        [7; 200]
    );
    fs.sync().unwrap();
    image.crash_copy().mount("").unmount().unwrap();
    fs.setxattr(&c, ino(&fs, "f3"), b"user.same", &[7; 200], SetXattr::Any)
        .unwrap();
    for name in &names[5..] {
        fs.unlink(&c, fs.root(), name.as_bytes()).unwrap();
    }
    fs.removexattr(&c, ino(&fs, "f0"), b"user.same").unwrap();
    fs.unmount().unwrap();
    image.assert_clean();
    assert!(image.debugfs("ea_list f3").contains("user.same (200)"));
    let fs = image.mount("");
    for name in &names[..5] {
        fs.unlink(&c, fs.root(), name.as_bytes()).unwrap();
    }
    assert_eq!(fs.statfs().unwrap().blocks_free, free);
    fs.unmount().unwrap();
    image.assert_clean();
}

/// An ACL as setxattr takes it: version 2, entries of tag, permissions, id.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

const NONE: u32 = u32::MAX;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

#[test]
fn acls_and_modes_say_the_same() {
    let image = Image::new(16, &["-t", "ext4"]);
    let fs = image.mount("");
    let root = Caller::root();
    let bob = Caller::user(1001, 1001);
    let ino = fs.create(&root, fs.root(), b"f", 0o640, RW).unwrap().ino;
    refused!(fs.access(&bob, ino, Access::READ), Access);
    let list = acl(&[
        (1, 6, NONE),
        (2, 6, 1001),
        (4, 4, NONE),
        (16, 6, NONE),
        (32, 0, NONE),
    ]);
    fs.setxattr(&root, ino, ACCESS, &list, SetXattr::Any)
        .unwrap();
    assert_eq!(fs.getattr(ino).unwrap().mode, 0o100660);
    assert_eq!(fs.getxattr(&root, ino, ACCESS).unwrap(), list);
    fs.access(&bob, ino, Access::READ | Access::WRITE).unwrap();
    // chmod changes the mask, and with it what bob gets.
    fs.setattr(&root, ino, &mode(0o640)).unwrap();
    refused!(fs.access(&bob, ino, Access::WRITE), Access);
    fs.access(&bob, ino, Access::READ).unwrap();
    let list = acl(&[
        (1, 6, NONE),
        (2, 6, 1001),
        (4, 4, NONE),
        (16, 4, NONE),
        (32, 0, NONE),
    ]);
    assert_eq!(fs.getxattr(&root, ino, ACCESS).unwrap(), list);
    // An ACL that the mode can express is not stored.
    let list = acl(&[(1, 7, NONE), (4, 5, NONE), (32, 1, NONE)]);
    fs.setxattr(&root, ino, ACCESS, &list, SetXattr::Any)
        .unwrap();
    assert_eq!(fs.getattr(ino).unwrap().mode, 0o100751);
    refused!(fs.getxattr(&root, ino, ACCESS), NoData);
    refused!(
        fs.setxattr(&root, ino, ACCESS, b"\x02\0\0\0\x01", SetXattr::Any),
        Invalid
    );
    refused!(
        fs.setxattr(
            &root,
            ino,
            ACCESS,
            &acl(&[(1, 7, NONE), (2, 7, 5)]),
            SetXattr::Any
        ),
        Invalid
    );
    refused!(
        fs.setxattr(&bob, ino, ACCESS, &list, SetXattr::Any),
        NotPermitted
    );
    refused!(
        fs.setxattr(&root, ino, DEFAULT, &list, SetXattr::Any),
        Access
    );
    fs.release(ino).unwrap();

    // A default ACL determines the mode of new files, whatever the umask.
    let dir = fs.mkdir(&root, fs.root(), b"d", 0o755).unwrap().ino;
    let list = acl(&[
        (1, 7, NONE),
        (2, 7, 1001),
        (4, 5, NONE),
        (16, 7, NONE),
        (32, 5, NONE),
    ]);
    fs.setxattr(&root, dir, DEFAULT, &list, SetXattr::Any)
        .unwrap();
    assert_eq!(fs.getattr(dir).unwrap().mode, 0o040755);
    let masked = Caller {
        umask: 0o077,
        ..Caller::root()
    };
    let file = fs.create(&masked, dir, b"f", 0o666, RW).unwrap();
    assert_eq!(file.attr.mode, 0o100664);
    let made = acl(&[
        (1, 6, NONE),
        (2, 7, 1001),
        (4, 5, NONE),
        (16, 6, NONE),
        (32, 4, NONE),
    ]);
    assert_eq!(fs.getxattr(&root, file.ino, ACCESS).unwrap(), made);
    fs.release(file.ino).unwrap();
    let sub = fs.mkdir(&masked, dir, b"sub", 0o777).unwrap();
    assert_eq!(fs.getxattr(&root, sub.ino, DEFAULT).unwrap(), list);
    assert_eq!(fs.getxattr(&root, sub.ino, ACCESS).unwrap(), list);
    let plain = fs.create(&masked, fs.root(), b"plain", 0o666, RW).unwrap();
    assert_eq!(plain.attr.mode, 0o100600);
    fs.release(plain.ino).unwrap();
    fs.unmount().unwrap();
    image.assert_clean();
    let seen = image.on_kernel("ro", |dir| {
        let out = std::process::Command::new("getfacl")
            .arg("-np")
            .arg(dir.join("d/sub"))
            .output();
        out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
    });
    match seen {
        Some(Ok(text)) => assert!(text.contains("default:user:1001:rwx"), "{text}"),
        Some(Err(e)) => eprintln!("SKIPPED: getfacl: {e}"),
        None => {}
    }
}

#[test]
fn flags_are_kept_and_obeyed() {
    let image = Image::new(16, &["-t", "ext4"]);
    let fs = image.mount("");
    let root = Caller::root();
    let alice = Caller::user(1000, 1000);
    let ino = fs.create(&root, fs.root(), b"f", 0o666, RW).unwrap().ino;
    let base = fs.get_flags(ino).unwrap();
    refused!(
        fs.set_flags(&alice, ino, base | InodeFlags::NODUMP),
        NotPermitted
    );
    fs.setattr(&root, ino, &owner(1000, 1000)).unwrap();
    fs.set_flags(&alice, ino, base | InodeFlags::NODUMP | InodeFlags::NOATIME)
        .unwrap();
    refused!(
        fs.set_flags(&alice, ino, base | InodeFlags::IMMUTABLE),
        NotPermitted
    );
    refused!(
        fs.set_flags(&root, ino, base - InodeFlags::EXTENTS),
        NotSupported
    );
    fs.set_flags(&root, ino, base | InodeFlags::APPEND).unwrap();
    refused!(fs.write(&root, ino, 0, b"x"), NotPermitted);
    fs.append(&root, ino, b"x").unwrap();
    refused!(
        fs.setattr(
            &root,
            ino,
            &SetAttr {
                size: Some(0),
                ..SetAttr::default()
            }
        ),
        NotPermitted
    );
    refused!(fs.open(&root, ino, RW), NotPermitted);
    fs.set_flags(&root, ino, base | InodeFlags::IMMUTABLE)
        .unwrap();
    refused!(fs.append(&root, ino, b"x"), NotPermitted);
    refused!(fs.setattr(&root, ino, &mode(0o600)), NotPermitted);
    refused!(
        fs.setxattr(&root, ino, b"user.x", b"", SetXattr::Any),
        NotPermitted
    );
    refused!(fs.unlink(&root, fs.root(), b"f"), NotPermitted);
    fs.release(ino).unwrap();
    fs.unmount().unwrap();
    image.assert_clean();
    assert!(image.debugfs("stat f").contains("Flags: 0x80010"));
}
