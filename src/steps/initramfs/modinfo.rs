//! What a kernel module says of itself: the firmware files that it asks for.

use anyhow::{Context, Result, ensure};

/// The firmware files that a module names in its section `.modinfo`, which is texts with a zero behind each
/// (`MODULE_FIRMWARE` of `include/linux/module.h`).
///
/// # Errors
/// If the module is not an ELF file of 64 bits, little-endian.
pub(super) fn firmware(module: &[u8]) -> Result<Vec<String>> {
    let texts = section(module, b".modinfo")?.unwrap_or_default();
    let named = texts
        .split(|byte| *byte == 0)
        .filter_map(|text| text.strip_prefix(b"firmware="))
        .map(|name| String::from_utf8_lossy(name).into_owned());
    Ok(named.filter(|name| is_firmware_name(name)).collect())
}

/// Whether a driver's word is the name of a firmware file: what leads out of the folder is none.
pub(super) fn is_firmware_name(name: &str) -> bool {
    !name.is_empty() && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// The bytes of a section of an ELF file (System V ABI, chapter 4).
fn section<'m>(module: &'m [u8], name: &[u8]) -> Result<Option<&'m [u8]>> {
    ensure!(
        module.starts_with(b"\x7fELF\x02\x01"),
        "expected a little-endian ELF file of 64 bits"
    );
    let headers = usize::try_from(number(module, 0x28, 8)?)?;
    let length = usize::try_from(number(module, 0x3a, 2)?)?;
    let count = usize::try_from(number(module, 0x3c, 2)?)?;
    let names = usize::try_from(number(module, 0x3e, 2)?)?;
    let header = |index: usize| {
        let at = index.checked_mul(length)?.checked_add(headers)?;
        module.get(at..at.checked_add(0x40)?)
    };
    let bytes = |header: &[u8]| -> Result<&'m [u8]> {
        let start = usize::try_from(number(header, 0x18, 8)?)?;
        let size = usize::try_from(number(header, 0x20, 8)?)?;
        let end = start.checked_add(size);
        let range = end.and_then(|end| module.get(start..end));
        range.context("a section that leads out of the file")
    };
    let names = bytes(header(names).context("no names of sections")?)?;
    for index in 0..count {
        let header = header(index).context("section headers that lead out of the file")?;
        let rest = names.get(usize::try_from(number(header, 0, 4)?)?..);
        let found = rest.and_then(|rest| rest.split(|byte| *byte == 0).next());
        if found == Some(name) {
            return bytes(header).map(Some);
        }
    }
    Ok(None)
}

/// A little-endian number of `length` bytes, eight at most.
fn number(bytes: &[u8], at: usize, length: usize) -> Result<u64> {
    let field = bytes.get(at..at + length).context("the file ends early")?;
    Ok(field
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An ELF file with this content of `.modinfo`, as little as it takes.
    pub(in super::super) fn module(info: &[u8]) -> Vec<u8> {
        let names = b"\0.modinfo\0.shstrtab\0";
        let (info_at, names_at) = (0x40, 0x40 + info.len());
        let headers = names_at + names.len();
        let mut out = b"\x7fELF\x02\x01".to_vec();
        out.resize(0x40, 0);
        out[0x28..0x30].copy_from_slice(&(headers as u64).to_le_bytes());
        out[0x3a..0x40].copy_from_slice(&[0x40, 0, 3, 0, 2, 0]);
        out.extend(info);
        out.extend(names);
        for (name, at, size) in [
            (0, 0, 0),
            (1, info_at, info.len()),
            (10, names_at, names.len()),
        ] {
            let mut header = [0; 0x40];
            header[..4].copy_from_slice(&u32::to_le_bytes(name));
            header[0x18..0x20].copy_from_slice(&(at as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(size as u64).to_le_bytes());
            out.extend(header);
        }
        out
    }

    #[test]
    fn a_modules_firmware_is_read_from_its_section() {
        let info = b"license=GPL\0firmware=bnx2x/b-1.fw\0firmware=../../etc/shadow\0alias=x\0firmware=qed/*.bin\0";
        let whole = module(info);
        assert_eq!(firmware(&whole).unwrap(), ["bnx2x/b-1.fw", "qed/*.bin"]);
        // A text elsewhere in the file counts for nothing.
        let mut other = module(b"license=GPL\0");
        other.extend(b"\0firmware=x\0");
        assert_eq!(firmware(&other).unwrap(), Vec::<String>::new());
        assert!(firmware(b"\x7fELF\x01\x01").is_err());
        for end in 0..whole.len() {
            drop(firmware(&whole[..end]));
        }
    }
}
