//! Texts that are equal except for numbers and random names.

/// The length from which on such a word is taken for random.
const DRAWN: usize = 6;

/// The same for all numbers in a text, and for what programs draw at random or hash: words of
/// hexadecimal digits, longer words with a digit before a letter, and longer words behind `tmp_`.
pub fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() {
            word.push(c);
            continue;
        }
        let is_digit = |c: char| c.is_ascii_digit();
        let is_hex = word.contains(is_digit) && word.chars().all(|c| c.is_ascii_hexdigit());
        let name = out.rsplit(['/', ' ']).next().unwrap_or_default();
        let is_drawn = word.len() >= DRAWN
            && (word.trim_end_matches(is_digit).contains(is_digit) || name.starts_with("tmp_"));
        if is_hex || is_drawn {
            out.push('#');
        } else {
            out += &digits_as_one(&word);
        }
        word.clear();
        out.push(c);
    }
    out.pop();
    out
}

pub(crate) fn digits_as_one(word: &str) -> String {
    let mut out = String::new();
    for c in word.chars() {
        if !c.is_ascii_digit() {
            out.push(c);
        } else if !out.ends_with('#') {
            out.push('#');
        }
    }
    out
}
