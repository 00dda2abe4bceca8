//! Patterns as fnmatch(3) has them without flags: `*` and `?` match a slash and a leading dot, too.
//! Bytes are compared, as in the C locale.

/// Returns whether all of `text` matches.
pub(super) fn matches(pattern: &[u8], text: &[u8], any_case: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on after a mismatch: behind the last star, with one more byte for the star.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, t));
            p += 1;
        } else if let Some(next) = one(pattern, p, text[t], any_case) {
            p = next;
            t += 1;
        } else if let Some((star, from)) = retry {
            retry = Some((star, from + 1));
            (p, t) = (star, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Matches one byte against what begins at `p`; returns where the pattern goes on.
fn one(pattern: &[u8], p: usize, byte: u8, any_case: bool) -> Option<usize> {
    let same = |a: u8, b: u8| a == b || any_case && a.eq_ignore_ascii_case(&b);
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => match set(pattern, p + 1, byte, any_case) {
            Some((is_in, next)) => is_in.then_some(next),
            // Without its end it is a bracket like any other byte.
            None => same(b'[', byte).then_some(p + 1),
        },
        b'\\' if p + 1 < pattern.len() => same(pattern[p + 1], byte).then_some(p + 2),
        plain => same(plain, byte).then_some(p + 1),
    }
}

/// Matches a byte against the set that begins at `p`, behind the bracket. Returns where the pattern
/// goes on, too; None if the set does not end.
fn set(pattern: &[u8], mut p: usize, byte: u8, any_case: bool) -> Option<(bool, usize)> {
    let is_not = matches!(pattern.get(p), Some(b'!' | b'^'));
    p += usize::from(is_not);
    let cases = if any_case {
        [byte.to_ascii_lowercase(), byte.to_ascii_uppercase()]
    } else {
        [byte, byte]
    };
    let (mut is_in, mut is_first) = (false, true);
    loop {
        let mut low = *pattern.get(p)?;
        if low == b']' && !is_first {
            return Some((is_in != is_not, p + 1));
        }
        is_first = false;
        if low == b'[' && pattern.get(p + 1) == Some(&b':') {
            let rest = &pattern[p + 2..];
            let end = rest.windows(2).position(|two| two == b":]")?;
            is_in |= cases.iter().any(|byte| is_of_class(&rest[..end], *byte));
            p += 2 + end + 2;
            continue;
        }
        if low == b'\\' {
            p += 1;
            low = *pattern.get(p)?;
        }
        p += 1;
        let mut high = low;
        if pattern.get(p) == Some(&b'-') && pattern.get(p + 1).is_some_and(|next| *next != b']') {
            p += 1;
            high = *pattern.get(p)?;
            if high == b'\\' {
                p += 1;
                high = *pattern.get(p)?;
            }
            p += 1;
        }
        is_in |= cases.iter().any(|byte| (low..=high).contains(byte));
    }
}

fn is_of_class(class: &[u8], byte: u8) -> bool {
    match class {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_fnmatch() {
        for (pattern, text, is_match) in [
            ("*", "", true),
            ("*.c", "a.c", true),
            ("*.c", "a.cc", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "/", true),
            ("*", ".dot", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[[:digit:]]*", "7up", true),
            ("[[:digit:]]", "x", false),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("[a\\]]", "]", true),
            ("[z-a]", "b", false),
            ("**x", "yyx", true),
            ("[a-]", "-", true),
        ] {
            let found = matches(pattern.as_bytes(), text.as_bytes(), false);
            assert_eq!(found, is_match, "{pattern} and {text}");
        }
        assert!(matches(b"*.JPG", b"a.jpg", true));
        assert!(matches(b"[A-B]", b"b", true));
        assert!(!matches(b"*.JPG", b"a.jpg", false));
        // Stars that must all be tried take no exponential time.
        let (pattern, text) = ("*a".repeat(50) + "b", "a".repeat(5000));
        assert!(!matches(pattern.as_bytes(), text.as_bytes(), false));
    }
}
