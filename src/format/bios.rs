//! What a BIOS runs of a disk that boots by UEFI alone: code that says so and stops.
//!
//! A BIOS loads the first sector at 0x7c00 and jumps to it in real mode (<https://wiki.osdev.org/MBR_(x86)>). The same bytes stand
//! in the protective MBR, which is what a BIOS runs of a disk, and in the boot sector of the ESP, to which another loader may jump.

/// The text. Kept as one line of 80 columns.
pub(super) const TEXT: &str =
    "Slipway: this image boots by UEFI; set the machine's firmware to UEFI\r\n";

/// Sets a stack, writes the text that follows by the BIOS's teletype call, and halts. It reads its own address from the stack,
/// since it runs at more than one.
const PROGRAM: [u8; 34] = [
    0x31, 0xc0, // xor ax, ax
    0x8e, 0xd0, // mov ss, ax
    0xbc, 0x00, 0x7c, // mov sp, 0x7c00
    0xfc, // cld
    0xe8, 0x00, 0x00, // call here
    0x5e, // here: pop si
    0x0e, // push cs
    0x1f, // pop ds
    0x83, 0xc6, 0x17, // add si, text - here
    0xac, // next: lodsb
    0x84, 0xc0, // test al, al
    0x74, 0x09, // jz halt
    0xb4, 0x0e, // mov ah, 0x0e: write a character
    0xbb, 0x07, 0x00, // mov bx, 7: page 0, grey
    0xcd, 0x10, // int 0x10
    0xeb, 0xf2, // jmp next
    0xf4, // halt: hlt, until the next interrupt
    0xeb, 0xfd, // jmp halt
];

/// The code with its text, which ends with a zero.
pub(super) fn code() -> Vec<u8> {
    [&PROGRAM, TEXT.as_bytes(), &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_and_the_text_are_where_the_code_says() {
        let code = code();
        let from = |at: usize| {
            // A short jump counts from the instruction behind it.
            let step = isize::from(i8::from_le_bytes([code[at + 1]]));
            (at + 2).checked_add_signed(step).unwrap()
        };
        let at = |bytes: &[u8]| {
            let mut places = code.windows(bytes.len());
            places.position(|window| window == bytes).unwrap()
        };
        let here = at(&[0xe8, 0, 0]) + 3;
        let text = here + usize::from(code[at(&[0x83, 0xc6]) + 2]);
        assert_eq!(text, PROGRAM.len());
        assert_eq!(&code[text..text + TEXT.len()], TEXT.as_bytes());
        assert_eq!(code[text + TEXT.len()..], [0]);
        let (next, halt) = (at(&[0xac]), at(&[0xf4]));
        assert_eq!(from(at(&[0x74])), halt);
        assert_eq!(from(at(&[0xcd, 0x10]) + 2), next);
        assert_eq!(from(halt + 1), halt);
        assert!(TEXT.ends_with("UEFI\r\n") && TEXT.len() <= 80);
    }
}
