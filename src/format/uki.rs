//! Writes a unified kernel image: systemd's stub with the kernel, the initramfs and the command line as PE sections.
//!
//! Formats: UAPI.5 (<https://uapi-group.org/specifications/specs/unified_kernel_image/>) and Microsoft's PE
//! specification. The layout of sections is that of systemd's `ukify`; a test compares them byte for byte.

use anyhow::{Context, Result, bail, ensure};

use super::kind::{HEAD, kind};

/// The parts of a UKI, in their order in the file.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// systemd's stub for the machine, unsigned.
    pub stub: &'a [u8],
    /// Text of `os-release`: boot loaders show its name and sort by its version.
    pub os_release: &'a str,
    /// The kernel command line, without a final newline.
    pub cmdline: &'a str,
    /// `uname -r` of the kernel.
    pub release: &'a str,
    /// The kernel, itself a PE program.
    pub kernel: &'a [u8],
    /// The initramfs, compressed.
    pub initrd: &'a [u8],
}

const FILE_ALIGNMENT: usize = 512;
const CODE: u32 = 0x20;
const DATA: u32 = 0x40;
const READ: u32 = 0x4000_0000;
const NX_COMPAT: u16 = 0x100;
/// The first line of every SBAT section, kept once.
const SBAT_HEAD: &str =
    "sbat,1,SBAT Version,sbat,1,https://github.com/rhboot/shim/blob/main/SBAT.md\n";
/// The generation number of unified images, by which firmware revokes them.
const SBAT_UKI: &str =
    "uki,1,UKI,uki,1,https://uapi-group.org/specifications/specs/unified_kernel_image/\n";

/// Links the image.
///
/// # Errors
/// When the stub or the kernel is not a PE program, the stub is signed, or it has no room for more section headers.
pub fn write(parts: &Parts) -> Result<Vec<u8>> {
    let kernel = Pe::read(parts.kernel).context("reading the kernel as a PE program")?;
    let mut out = parts.stub.to_vec();
    out.reserve(parts.kernel.len() + parts.initrd.len() + (64 << 10));
    let stub = Pe::read(parts.stub).context("reading systemd's stub as a PE program")?;
    ensure!(
        stub.certificates(parts.stub)? == 0,
        "systemd's stub is signed; an unsigned one is needed, since new sections void a signature"
    );
    if kernel.characteristics(parts.kernel)? & NX_COMPAT == 0 {
        let flags = stub.characteristics(parts.stub)? & !NX_COMPAT;
        put(&mut out, stub.optional + 70, &flags.to_le_bytes())?;
    }
    let sbat = merge_sbat(&[(&stub, parts.stub), (&kernel, parts.kernel)])?;
    replace(&mut out, &stub, ".sbat", sbat.as_bytes())?;
    let mut header = Appender::new(&out, &stub)?;
    for (name, content, flags) in [
        (".osrel", parts.os_release.as_bytes(), DATA),
        (".cmdline", parts.cmdline.as_bytes(), DATA),
        (".uname", parts.release.as_bytes(), DATA),
        (".linux", parts.kernel, CODE),
        (".initrd", parts.initrd, DATA),
    ] {
        header.add(&mut out, name, content, flags | READ)?;
    }
    header.finish(&mut out)?;
    Ok(out)
}

/// Links an addon: `stub`, systemd's for addons, with a command line.
///
/// # Errors
/// As [`write()`].
pub fn addon(stub: &[u8], cmdline: &[u8]) -> Result<Vec<u8>> {
    let pe = Pe::read(stub).context("reading systemd's stub for addons as a PE program")?;
    let mut out = stub.to_vec();
    out.resize(out.len().next_multiple_of(FILE_ALIGNMENT), 0);
    let mut header = Appender::new(&out, &pe)?;
    header.add(&mut out, ".cmdline", cmdline, DATA | READ)?;
    header.finish(&mut out)?;
    Ok(out)
}

/// The content of a section, without the padding; `None` when there is no such section.
///
/// # Errors
/// When the bytes are not a PE program, or a header points outside them.
pub fn section<'a>(bytes: &'a [u8], name: &str) -> Result<Option<&'a [u8]>> {
    let pe = Pe::read(bytes)?;
    for section in pe.sections(bytes)? {
        if section.name == name {
            return Ok(Some(section.content(bytes)?));
        }
    }
    Ok(None)
}

#[derive(Clone, Copy)]
/// Offsets of the headers of a PE file, in bytes from its start.
struct Pe {
    coff: usize,
    optional: usize,
    sections: usize,
    count: usize,
}

struct Section {
    name: String,
    virtual_size: usize,
    address: usize,
    raw_size: usize,
    raw: usize,
    header: usize,
}

impl Section {
    fn content<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let length = self.virtual_size.min(self.raw_size);
        bytes
            .get(self.raw..self.raw + length)
            .with_context(|| format!("section {} lies outside the file", self.name))
    }
}

impl Pe {
    fn read(bytes: &[u8]) -> Result<Self> {
        ensure!(
            bytes.get(..2) == Some(b"MZ"),
            "expected a PE program, found {}",
            kind(bytes.get(..HEAD).unwrap_or(bytes))
        );
        let signature = usize::try_from(u32_at(bytes, 0x3c)?)?;
        ensure!(
            bytes.get(signature..signature + 4) == Some(b"PE\0\0"),
            "no PE signature at byte {signature}"
        );
        let coff = signature + 4;
        let optional = coff + 20;
        ensure!(
            u16_at(bytes, optional)? == 0x20b,
            "expected a 64-bit PE program (PE32+)"
        );
        Ok(Self {
            coff,
            optional,
            sections: optional + usize::from(u16_at(bytes, coff + 16)?),
            count: usize::from(u16_at(bytes, coff + 2)?),
        })
    }

    fn characteristics(&self, bytes: &[u8]) -> Result<u16> {
        u16_at(bytes, self.optional + 70)
    }

    /// File offset of the certificate table, 0 when the program is unsigned.
    fn certificates(&self, bytes: &[u8]) -> Result<u32> {
        if u32_at(bytes, self.optional + 108)? <= 4 {
            return Ok(0);
        }
        u32_at(bytes, self.optional + 112 + 4 * 8)
    }

    fn sections(&self, bytes: &[u8]) -> Result<Vec<Section>> {
        (0..self.count)
            .map(|index| {
                let header = self.sections + 40 * index;
                let name = bytes
                    .get(header..header + 8)
                    .context("truncated section table")?;
                let size =
                    |at| -> Result<usize> { Ok(usize::try_from(u32_at(bytes, header + at)?)?) };
                Ok(Section {
                    name: String::from_utf8_lossy(name)
                        .trim_end_matches('\0')
                        .to_owned(),
                    virtual_size: size(8)?,
                    address: size(12)?,
                    raw_size: size(16)?,
                    raw: size(20)?,
                    header,
                })
            })
            .collect()
    }
}

/// The lines of all SBAT sections, below a single first line.
fn merge_sbat(programs: &[(&Pe, &[u8])]) -> Result<String> {
    let mut out = SBAT_HEAD.to_owned();
    for (pe, bytes) in programs {
        for section in pe.sections(bytes)? {
            if section.name != ".sbat" {
                continue;
            }
            let text = String::from_utf8_lossy(section.content(bytes)?);
            let text = text.trim_end_matches('\0');
            if text.starts_with("sbat,") {
                for line in text.lines().skip(1) {
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
    }
    out.push_str(SBAT_UKI);
    out.push('\0');
    Ok(out)
}

/// Replaces the content of an existing section of the stub.
fn replace(out: &mut [u8], stub: &Pe, name: &str, content: &[u8]) -> Result<()> {
    let sections = stub.sections(out)?;
    let section = sections
        .iter()
        .find(|section| section.name == name)
        .with_context(|| format!("systemd's stub has no section {name}"))?;
    if content.len() > section.raw_size {
        bail!(
            "section {name} of systemd's stub has {} bytes, {} are needed",
            section.raw_size,
            content.len()
        );
    }
    let room = out
        .get_mut(section.raw..section.raw + section.raw_size)
        .with_context(|| format!("section {name} lies outside the stub"))?;
    room.fill(0);
    room[..content.len()].copy_from_slice(content);
    let size = u32::try_from(content.len())?.to_le_bytes();
    put(out, section.header + 8, &size)
}

/// Adds sections after those of the stub.
struct Appender {
    pe: Pe,
    alignment: usize,
    headers: usize,
    /// End of the last section in memory.
    end: usize,
    count: u16,
    initialized: u32,
}

impl Appender {
    fn new(out: &[u8], stub: &Pe) -> Result<Self> {
        let last = stub
            .sections(out)?
            .pop()
            .context("systemd's stub has no sections")?;
        let count = u16::try_from(stub.count)?;
        let file_alignment = usize::try_from(u32_at(out, stub.optional + 36)?)?;
        ensure!(
            file_alignment == FILE_ALIGNMENT && out.len().is_multiple_of(FILE_ALIGNMENT),
            "systemd's stub: expected sections on {FILE_ALIGNMENT} bytes, found {file_alignment} in a file of {} bytes",
            out.len()
        );
        Ok(Self {
            pe: *stub,
            alignment: usize::try_from(u32_at(out, stub.optional + 32)?)?,
            headers: usize::try_from(u32_at(out, stub.optional + 60)?)?,
            end: last.address + last.virtual_size,
            count,
            initialized: u32_at(out, stub.optional + 8)?,
        })
    }

    fn add(&mut self, out: &mut Vec<u8>, name: &str, content: &[u8], flags: u32) -> Result<()> {
        let header = self.pe.sections + 40 * usize::from(self.count);
        ensure!(
            header + 40 <= self.headers,
            "systemd's stub has no room for the header of section {name}: its headers end at byte {}",
            self.headers
        );
        let address = self.end.next_multiple_of(self.alignment);
        let raw = out.len();
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(FILE_ALIGNMENT), 0);
        let mut entry = [0; 40];
        entry[..name.len()].copy_from_slice(name.as_bytes());
        for (at, value) in [
            (8, content.len()),
            (12, address),
            (16, out.len() - raw),
            (20, raw),
        ] {
            let value =
                u32::try_from(value).with_context(|| format!("section {name} is too large"))?;
            entry[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        entry[36..].copy_from_slice(&flags.to_le_bytes());
        put(out, header, &entry)?;
        self.end = address + content.len();
        self.count += 1;
        self.initialized += u32::try_from(content.len())?;
        Ok(())
    }

    fn finish(self, out: &mut [u8]) -> Result<()> {
        let image = u32::try_from(self.end.next_multiple_of(self.alignment))
            .context("the image is larger than 4 GiB")?;
        put(out, self.pe.coff + 2, &self.count.to_le_bytes())?;
        put(out, self.pe.optional + 8, &self.initialized.to_le_bytes())?;
        put(out, self.pe.optional + 56, &image.to_le_bytes())?;
        put(out, self.pe.optional + 64, &[0; 4])
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    let found = bytes.get(at..at + 2).context("truncated PE program")?;
    Ok(u16::from_le_bytes([found[0], found[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    let found = bytes.get(at..at + 4).context("truncated PE program")?;
    Ok(u32::from_le_bytes([found[0], found[1], found[2], found[3]]))
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) -> Result<()> {
    out.get_mut(at..at + bytes.len())
        .context("truncated PE program")?
        .copy_from_slice(bytes);
    Ok(())
}
