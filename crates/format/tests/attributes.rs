//! Extended attributes and access control lists, judged by debugfs, e2fsck and, where it
//! can be mounted, the kernel.

mod image;

use image::{Image, Volume, on_every_kind};
use stetfs_format::acl::{Acl, AclEntry, Tag};
use stetfs_format::xattr::{
    self, INDEX_POSIX_ACL_ACCESS, INDEX_SECURITY, INDEX_TRUSTED, INDEX_USER, encode_block,
    encode_inode, fits_block, fits_inode, prefix, split_name,
};
use stetfs_format::{BlockNo, Corrupt, InodeNo, Xattr, XattrArea, XattrBlock};

fn named(image: &Image, name: &str) -> InodeNo {
    let output = image.debugfs(&format!("stat {name}"));
    let start = output.find("Inode: ").expect("an inode") + 7;
    let number = output[start..].split_whitespace().next().expect("a number");
    InodeNo(number.parse().expect("a number"))
}

/// Full name and value of every attribute of an inode.
fn attributes(volume: &Volume, ino: InodeNo) -> Vec<(String, Vec<u8>)> {
    let (inode, sb) = (volume.inode(ino), &volume.sb);
    let in_inode = XattrArea::in_inode(volume.inode_raw(ino), &inode, sb).expect("attributes");
    let mut found: Vec<Xattr<'_>> = in_inode.iter().collect();
    if inode.file_acl.0 != 0 {
        let raw = volume.block(inode.file_acl);
        let block = XattrBlock::decode(raw, inode.file_acl, sb).expect("an attribute block");
        block.check_hashes().expect("hashes");
        let list: Vec<Xattr<'_>> = block.area().iter().collect();
        // libext2fs stores hash 0, which forbids sharing.
        assert!(block.hash == 0 || block.hash == xattr::block_hash(&list));
        assert_eq!(block.refcount, 1);
        found.extend(list);
    }
    let mut named: Vec<_> = found
        .iter()
        .map(|xattr| {
            let prefix = prefix(xattr.index).expect("a known index");
            let name = [prefix, xattr.name].concat();
            assert_eq!(split_name(&name), Some((xattr.index, xattr.name)));
            (
                String::from_utf8(name).expect("letters"),
                xattr.value.to_vec(),
            )
        })
        .collect();
    named.sort();
    named
}

#[test]
fn attributes_are_what_debugfs_says() {
    on_every_kind(|_, image| {
        let volume = image.read();
        let ours = attributes(&volume, named(image, "attributes"));
        let names: Vec<&str> = ours.iter().map(|(name, _)| name.as_str()).collect();
        let listing = image.debugfs("ea_list attributes");
        for (name, value) in &ours {
            assert!(
                listing.contains(&format!("{name} ({})", value.len())),
                "{listing}"
            );
            let copy = image.file("copy", b"");
            image.debugfs(&format!("ea_get -f {copy} attributes {name}"));
            assert_eq!(&std::fs::read(&copy).expect("a value"), value, "{name}");
        }
        let expected = [
            "security.s",
            "trusted.t",
            "user.empty",
            "user.hello",
            "user.large",
        ];
        assert_eq!(names, expected);
        assert!(attributes(&volume, named(image, "big")).is_empty());
    });
}

/// Bytes that look like values of many lengths.
fn values() -> Vec<(u8, Vec<u8>, Vec<u8>)> {
    let mut list: Vec<(u8, Vec<u8>, Vec<u8>)> = (0..9usize)
        .map(|i| {
            let index = [INDEX_USER, INDEX_TRUSTED, INDEX_SECURITY][i % 3];
            (index, vec![b'a' + i as u8; 1 + i % 4], vec![i as u8; i * 3])
        })
        .collect();
    list.push((INDEX_USER, "h\u{e4}\u{df}lich".into(), b"\xff\xfe".to_vec()));
    list.sort_by(|a, b| (a.0, a.1.len(), &a.1).cmp(&(b.0, b.1.len(), &b.1)));
    list
}

/// Attributes that we write into an inode and into a block of a file that has both.
#[test]
fn e2fsck_accepts_what_we_write() {
    for args in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext4", "-b", "4096", "-I", "512"],
        &["-t", "ext3", "-b", "1024", "-I", "256"],
        &["-t", "ext4", "-b", "2048", "-I", "128"],
    ] {
        let Some(image) = Image::make(args, 64 * 1024) else {
            continue;
        };
        image.populate();
        let mut volume = image.read();
        let (ino, sb) = (named(&image, "attributes"), volume.sb.clone());
        let inode = volume.inode(ino);
        let owned = values();
        let list: Vec<Xattr<'_>> = owned
            .iter()
            .map(|(index, name, value)| Xattr {
                index: *index,
                name,
                value,
            })
            .collect();
        // The inode gets as many as fit, the block the rest.
        let split = (0..=list.len())
            .rev()
            .find(|count| *count == 0 || fits_inode(list[..*count].iter().copied(), &inode, &sb))
            .expect("at least none");
        assert_eq!(split > 0, sb.inode_size() > 128);
        let (in_inode, in_block) = list.split_at(split);
        assert!(fits_block(in_block.iter().copied(), &sb));
        let raw = volume.inode_raw_mut(ino);
        encode_inode(raw, in_inode, &inode, &sb);
        inode.encode_into(raw, ino, &sb);
        encode_block(
            volume.block_mut(inode.file_acl),
            in_block,
            1,
            inode.file_acl,
            &sb,
        );
        image.write(&volume);
        image.assert_clean(&format!("{args:?}"));
        let listing = image.debugfs("ea_list attributes");
        for (index, name, value) in &owned {
            let full = [prefix(*index).expect("known"), name].concat();
            // debugfs prints letters outside ASCII as numbers.
            let Some(full) = String::from_utf8(full).ok().filter(|full| full.is_ascii()) else {
                continue;
            };
            assert!(
                listing.contains(&format!("{full} ({})", value.len())),
                "{full}: {listing}"
            );
        }
        assert_eq!(attributes(&image.read(), ino).len(), owned.len());
    }
}

/// What the kernel writes: attributes of several sizes, an access control list, a block
/// that two files share.
#[test]
fn attributes_that_the_kernel_wrote() {
    for args in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext4", "-I", "128"],
    ] {
        let Some(image) = Image::make(args, 16 * 1024) else {
            continue;
        };
        let acl = Acl::new([
            AclEntry {
                tag: Tag::UserObj,
                perm: 6,
            },
            AclEntry {
                tag: Tag::User(1000),
                perm: 7,
            },
            AclEntry {
                tag: Tag::User(7),
                perm: 4,
            },
            AclEntry {
                tag: Tag::GroupObj,
                perm: 4,
            },
            AclEntry {
                tag: Tag::Group(70_000),
                perm: 5,
            },
            AclEntry {
                tag: Tag::Mask,
                perm: 7,
            },
            AclEntry {
                tag: Tag::Other,
                perm: 0,
            },
        ])
        .expect("a valid list");
        let long = "L".repeat(600);
        let mounted = image.while_mounted(&[], |root| {
            for name in ["a", "b"] {
                let file = root.join(name);
                std::fs::write(&file, b"content").expect("a file");
                let set = |key: &str, value: &[u8]| {
                    let flags = rustix::fs::XattrFlags::empty();
                    rustix::fs::setxattr(&file, key, value, flags).expect("setxattr");
                };
                set("user.short", b"v");
                set("user.long", long.as_bytes());
                set("trusted.x", b"");
                set("system.posix_acl_access", &acl.encode_xattr());
            }
        });
        if !mounted {
            continue;
        }
        let volume = image.read();
        for name in ["a", "b"] {
            let ino = named(&image, name);
            let inode = volume.inode(ino);
            let block =
                XattrBlock::decode(volume.block(inode.file_acl), inode.file_acl, &volume.sb)
                    .expect("a block");
            block.check_hashes().expect("hashes");
            let in_inode =
                XattrArea::in_inode(volume.inode_raw(ino), &inode, &volume.sb).expect("attributes");
            let get = |index, name| in_inode.get(index, name).or(block.area().get(index, name));
            assert_eq!(get(INDEX_USER, b"short"), Some(&b"v"[..]));
            assert_eq!(get(INDEX_USER, b"long"), Some(long.as_bytes()));
            assert_eq!(get(INDEX_TRUSTED, b"x"), Some(&b""[..]));
            assert_eq!(get(INDEX_USER, b"x"), None);
            let stored = get(INDEX_POSIX_ACL_ACCESS, b"").expect("a list");
            assert_eq!(Acl::decode_disk(stored), Ok(Some(acl.clone())));
            assert_eq!(acl.encode_disk(), stored);
            // The same attributes encode to the same block, shared or not.
            let list: Vec<Xattr<'_>> = block.area().iter().collect();
            let mut again = vec![0; volume.sb.block_size()];
            encode_block(
                &mut again,
                &list,
                block.refcount,
                inode.file_acl,
                &volume.sb,
            );
            assert_eq!(xattr::block_hash(&list), block.hash);
            let back = XattrBlock::decode(&again, inode.file_acl, &volume.sb).expect("ours");
            assert_eq!((back.refcount, back.hash), (block.refcount, block.hash));
            assert!(back.area().iter().eq(list));
        }
    }
}

/// We refuse exactly the lists that the kernel refuses to set.
#[test]
fn access_control_lists_are_judged_as_by_the_kernel() {
    let entry = |tag, perm| AclEntry { tag, perm };
    let (u, g, o) = (
        entry(Tag::UserObj, 6),
        entry(Tag::GroupObj, 4),
        entry(Tag::Other, 4),
    );
    let (m, user, group) = (
        entry(Tag::Mask, 7),
        entry(Tag::User(5), 4),
        entry(Tag::Group(6), 4),
    );
    let other_user = entry(Tag::User(4), 4);
    let cases: [&[AclEntry]; 14] = [
        &[u, g, o],
        &[u, user, g, m, o],
        &[u, user, other_user, g, group, m, o],
        &[u, user, user, g, m, o],
        &[u, g, m, o],
        &[u, user, g, o],
        &[u, o],
        &[g, u, o],
        &[u, g, group, o],
        &[u, g, o, m],
        &[u, u, g, o],
        &[u, g, m, m, o],
        &[u, g, entry(Tag::Other, 8)],
        &[u, user, g, group, group, m, o],
    ];
    let encode = |entries: &[AclEntry]| {
        let mut value = 2u32.to_le_bytes().to_vec();
        for entry in entries {
            let (code, id) = match entry.tag {
                Tag::UserObj => (1u16, u32::MAX),
                Tag::User(id) => (2, id),
                Tag::GroupObj => (4, u32::MAX),
                Tag::Group(id) => (8, id),
                Tag::Mask => (16, u32::MAX),
                Tag::Other => (32, u32::MAX),
            };
            value.extend_from_slice(&code.to_le_bytes());
            value.extend_from_slice(&u16::from(entry.perm).to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    };
    let ours: Vec<bool> = cases
        .iter()
        .map(|case| Acl::decode_xattr(&encode(case)).is_ok())
        .collect();
    let first_wrong = [4, 5].map(|i: usize| ours[i]);
    assert_eq!(first_wrong, [true, false]);
    let Some(image) = Image::make(&["-t", "ext4"], 8 * 1024) else {
        return;
    };
    image.while_mounted(&[], |root| {
        for (case, ours) in cases.iter().zip(&ours) {
            let file = root.join("file");
            std::fs::write(&file, b"").expect("a file");
            let set = rustix::fs::setxattr(
                &file,
                "system.posix_acl_access",
                &encode(case),
                rustix::fs::XattrFlags::empty(),
            );
            assert_eq!(set.is_ok(), *ours, "{case:?}: {set:?}");
        }
    });
    assert_eq!(Acl::decode_xattr(&[2, 0, 0, 0]), Ok(None));
    assert_eq!(Acl::decode_xattr(&[2, 0, 0]), Err(Corrupt::AclSize(3)));
    assert_eq!(
        Acl::decode_xattr(&[1, 0, 0, 0]),
        Err(Corrupt::AclVersion(1))
    );
    assert_eq!(
        Acl::decode_xattr(&[2, 0, 0, 0, 1]),
        Err(Corrupt::AclSize(5))
    );
}

#[test]
fn damage_is_named() {
    let Some(image) = Image::make(&["-t", "ext4", "-b", "1024"], 8 * 1024) else {
        return;
    };
    let sb = image.read().sb;
    let xattr = |name, value| Xattr {
        index: INDEX_USER,
        name,
        value,
    };
    let list = [xattr(b"abc", b"value"), xattr(b"abcd", b"second")];
    let block = BlockNo(77);
    let mut raw = vec![0; 1024];
    encode_block(&mut raw, &list, 1, block, &sb);
    assert!(XattrBlock::decode(&raw, block, &sb).is_ok());
    assert!(matches!(
        XattrBlock::decode(&raw, BlockNo(78), &sb),
        Err(Corrupt::XattrChecksum { .. })
    ));
    let mut plain = *sb.geometry();
    plain.metadata_csum = false;
    let damaged = |offset: usize, bytes: &[u8]| {
        let mut bad = raw.clone();
        bad[offset..offset + bytes.len()].copy_from_slice(bytes);
        XattrBlock::decode(&bad, block, &plain)
            .map(drop)
            .expect_err("damage")
    };
    assert_eq!(damaged(0, &[1]), Corrupt::XattrMagic(0xea02_0001));
    assert_eq!(damaged(4, &[0]), Corrupt::XattrRefcount(0));
    assert_eq!(damaged(8, &[2]), Corrupt::XattrBlocks(2));
    let offset = 32;
    assert_eq!(damaged(50, &[0]), Corrupt::XattrName(offset));
    assert_eq!(damaged(36, &[9]), Corrupt::XattrInode { offset, ino: 9 });
    assert_eq!(
        damaged(34, &[0, 8]),
        Corrupt::XattrValue {
            offset,
            start: 2048,
            size: 5
        }
    );
    assert_eq!(
        damaged(34, &[40, 0]),
        Corrupt::XattrValue {
            offset,
            start: 40,
            size: 5
        }
    );
    let size = u32::MAX;
    let start = 1016;
    assert_eq!(
        damaged(40, &[255; 4]),
        Corrupt::XattrValue {
            offset,
            start,
            size
        }
    );
    let entry = [16, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let endless: Vec<u8> = [entry, [b'n'; 16]]
        .concat()
        .into_iter()
        .cycle()
        .take(992)
        .collect();
    assert_eq!(damaged(32, &endless), Corrupt::XattrUnended(1024));
    let mut bad = raw.clone();
    bad[44] ^= 1;
    let bad = XattrBlock::decode(&bad, block, &plain).expect("a block");
    assert!(matches!(
        bad.check_hashes(),
        Err(Corrupt::XattrHash { offset: 32, .. })
    ));
}

#[test]
fn names_have_their_index() {
    assert_eq!(split_name(b"user.a"), Some((1, &b"a"[..])));
    assert_eq!(split_name(b"user."), None);
    assert_eq!(split_name(b"system.posix_acl_access"), Some((2, &b""[..])));
    assert_eq!(
        split_name(b"system.posix_acl_accessory"),
        Some((7, &b"posix_acl_accessory"[..]))
    );
    assert_eq!(split_name(b"com.apple"), None);
    assert_eq!(prefix(9), None);
}
