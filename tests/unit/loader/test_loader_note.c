/* test_loader_note.c - the bytes of plugin files: hand-made images, each bent in one place, and cut at every length.
 * SPDX-License-Identifier: MIT */
#include "elf_image.h"
#include "loader_files.h"

static struct bpi_plugin_file file;
static struct bpi_refusal why;

static bool parse(const struct elf_image *im)
{
    /* A block of just these bytes, so that the address sanitizer sees any read beyond them. */
    unsigned char *exact = bpi_alloc(im->n);
    ck_assert_ptr_nonnull(exact);
    memcpy(exact, im->b, im->n);
    bool ok = bpi_plugin_file_parse(exact, im->n, &file, &why);
    bpi_free(exact);
    ck_assert_int_eq(ok, why.code == BP_R_NONE);
    return ok;
}

static void says_why(uint32_t code, const char *word)
{
    ck_assert_msg(why.code == code && strstr(why.text, word) != NULL, "want %s, got %s: %s", word,
                  bpi_reason_name(why.code), why.text);
}

static void bad(const struct elf_image *im, const char *word)
{
    ck_assert_msg(!parse(im), "accepted, though: %s", word);
    says_why(BP_R_LOAD, word);
}

static void bad_note(const struct bp_note_record *r, uint32_t code, const char *word)
{
    struct elf_image im;
    img_make(&im);
    img_put(&im, IMG_NOTES, r, sizeof *r);
    if (parse(&im)) ck_assert(!bpi_plugin_file_check(&file, &why));
    says_why(code, word);
}

START_TEST(a_whole_image)
{
    struct elf_image im;
    img_make(&im);
    for (int gnu = 0; gnu < 2; ++gnu) {
        if (gnu != 0) img_set_dyn(&im, 6, DT_GNU_HASH, IMG_GNU);
        ck_assert_msg(parse(&im), "%s", why.text);
        ck_assert_uint_eq(file.flags, BPI_PF_NOTE | BPI_PF_ENTRY);
        ck_assert_str_eq(file.note.name, "image");
        ck_assert_uint_eq(file.n_needed, 2);
        ck_assert_str_eq(file.needed, "libm.so.6 libdl.so.2");
        ck_assert_uint_eq(file.n_exports, 1);
        ck_assert_str_eq(file.exports, "extra");
        ck_assert_uint_eq(file.tls_bytes, 48);
        ck_assert_msg(bpi_plugin_file_check(&file, &why), "%s", why.text);
    }
    ck_assert(bpi_note_offers(&file.note, "bp.quant"));
    ck_assert(bpi_note_offers(&file.note, "bp.mla.decode"));
    ck_assert(!bpi_note_offers(&file.note, "bp.mla") && !bpi_note_offers(&file.note, "bp.moe"));
    ck_assert(!bpi_note_offers(&file.note, ""));
}
END_TEST

START_TEST(flags_are_seen)
{
    struct elf_image im;
    img_make(&im);
    img_set_dyn(&im, 7, DT_FLAGS, DF_STATIC_TLS | DF_TEXTREL);
    ck_assert(parse(&im));
    ck_assert_uint_eq(file.flags & (BPI_PF_STATIC_TLS | BPI_PF_TEXTREL),
                      BPI_PF_STATIC_TLS | BPI_PF_TEXTREL);
    img_set_dyn(&im, 7, DT_TEXTREL, 0);
    Elf64_Sym unique = {.st_name = 22 + sizeof BP_PLUGIN_ENTRY,
                        .st_info = ELF64_ST_INFO(STB_GNU_UNIQUE, STT_OBJECT),
                        .st_shndx = 1};
    img_put(&im, IMG_SYM + 4 * sizeof unique, &unique, sizeof unique);
    ck_assert(parse(&im));
    ck_assert_uint_eq(file.flags & (BPI_PF_TEXTREL | BPI_PF_UNIQUE),
                      BPI_PF_TEXTREL | BPI_PF_UNIQUE);
    ck_assert_uint_eq(file.n_exports, 2);
}
END_TEST

START_TEST(headers_that_are_not_ours)
{
    struct elf_image im;
    static const struct {
        size_t at;
        unsigned char value;
        const char *word;
    } bent[] = {{0, 'X', "no ELF file"},
                {EI_CLASS, ELFCLASS32, "64-bit"},
                {EI_DATA, ELFDATA2MSB, "little-endian"},
                {EI_VERSION, 0, "64-bit"},
                {offsetof(Elf64_Ehdr, e_version), 2, "64-bit"},
                {offsetof(Elf64_Ehdr, e_type), ET_EXEC, "no shared object"},
                {offsetof(Elf64_Ehdr, e_phentsize), 55, "impossible size"},
                {offsetof(Elf64_Ehdr, e_phnum), 0, "impossible size"},
                {offsetof(Elf64_Ehdr, e_phnum) + 1, 0xff, "impossible size"},
                {offsetof(Elf64_Ehdr, e_phoff) + 1, 0x10, "beyond the end"},
                {offsetof(Elf64_Ehdr, e_phoff) + 7, 0xff, "beyond the end"}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(bent); ++i) {
        img_make(&im);
        im.b[bent[i].at] = bent[i].value;
        bad(&im, bent[i].word);
    }
    img_make(&im);
    im.b[offsetof(Elf64_Ehdr, e_machine)] = EM_386;
    ck_assert(!parse(&im));
    says_why(BP_R_ARCH, "machine 3");
    ck_assert_int_eq(why.got, EM_386);
    im.n = 0;
    bad(&im, "no ELF file");
}
END_TEST

START_TEST(notes_that_are_broken)
{
    struct bp_note_record r = img_record("image", "bp.quant");
    r.descsz = 8;
    bad_note(&r, BP_R_LOAD, "wrong length");
    r = img_record("image", "bp.quant");
    r.descsz = UINT32_MAX;
    bad_note(&r, BP_R_LOAD, "longer than its segment");
    r.descsz = sizeof r.desc;
    r.namesz = UINT32_MAX;
    bad_note(&r, BP_R_LOAD, "longer than its segment");
    r = img_record("image", "bp.quant");
    memset(r.desc.name, 'a', sizeof r.desc.name); /* no end */
    bad_note(&r, BP_R_LOAD, "no end");
    r = img_record("image", "bp.quant");
    memset(r.desc.version, '1', sizeof r.desc.version);
    bad_note(&r, BP_R_LOAD, "no end");
    r = img_record("image", "bp.quant");
    memset(r.desc.ifaces, 'x', sizeof r.desc.ifaces);
    bad_note(&r, BP_R_LOAD, "no end");
    r = img_record("image", "bp.quant");
    r.desc.name[30] = 'x'; /* behind the end */
    bad_note(&r, BP_R_LOAD, "behind its end");
    r = img_record("ima\033ge", "bp.quant");
    bad_note(&r, BP_R_LOAD, "not printable");
    r = img_record("image", "bp.quant");
    r.type = 7; /* of ours, but another kind of note */
    bad_note(&r, BP_R_LOAD, "no plugin note");
    r.type = BP_NOTE_PLUGIN;
    r.owner[0] = 'b';
    bad_note(&r, BP_R_LOAD, "no plugin note");
}
END_TEST

START_TEST(notes_that_are_not_for_us)
{
    struct bp_note_record r = img_record("image", "bp.quant");
    r.desc.abi_minor = BP_ABI_MINOR + 1;
    bad_note(&r, BP_R_ABI, "rebuild");
    ck_assert_str_eq(why.field, "abi_minor");
    ck_assert(why.got == BP_ABI_MINOR + 1 && why.want_lo == BP_ABI_MINOR &&
              why.want_hi == BP_ABI_MINOR);
    r.desc.abi_major = 7;
    bad_note(&r, BP_R_ABI, "ABI 7.");
    ck_assert_str_eq(why.field, "abi_major");
    r = img_record("image", "bp.quant");
    r.desc.kind = 2;
    bad_note(&r, BP_R_ABI, "kind 2");
    r.desc.kind = BP_KIND_WRAPPER;
    r.desc.reserved = 1;
    bad_note(&r, BP_R_ABI, "kind 1 (1)");
    static const char *const names[] = {"", "auto", "Image", "a b", "a-b", "a.b"};
    for (size_t i = 0; i < BPI_ARRAY_LEN(names); ++i) {
        r = img_record(names[i], "bp.quant");
        bad_note(&r, BP_R_ABI, "a name has 1 to 31");
    }
    static const char *const lists[] = {
        "", " ", "bp.quant ", " bp.quant", "bp.quant  bp.moe", "bp.Quant", "bp.quant,bp.moe"};
    for (size_t i = 0; i < BPI_ARRAY_LEN(lists); ++i) {
        r = img_record("image", lists[i]);
        bad_note(&r, BP_R_ABI, "list of interfaces");
    }
    r = img_record("image", "acme.x bp.mla.decod");
    bad_note(&r, BP_R_ABI, "did you mean bp.mla.decode?");
    r = img_record("image", "bp.teleport");
    bad_note(&r, BP_R_ABI, "no interface \"bp.teleport\"");
}
END_TEST

START_TEST(two_notes)
{
    struct elf_image im;
    struct bp_note_record r = img_record("second", "bp.quant"), foreign = r;
    img_make(&im);
    Elf64_Phdr p = img_phdr(&im, 1);
    img_put(&im, IMG_NOTES + sizeof r, &r, sizeof r);
    p.p_filesz = 2 * sizeof r;
    img_set_phdr(&im, 1, &p);
    bad(&im, "two plugin notes");
    ck_assert_str_eq(file.note.name, "image");
    foreign.type = 9; /* one of another type does no harm, before or behind */
    img_put(&im, IMG_NOTES + sizeof r, &foreign, sizeof foreign);
    ck_assert_msg(parse(&im), "%s", why.text);
    img_put(&im, IMG_NOTES, &foreign, sizeof foreign);
    img_put(&im, IMG_NOTES + sizeof r, &r, sizeof r);
    ck_assert_msg(parse(&im), "%s", why.text);
    ck_assert_str_eq(file.note.name, "second");
    p.p_align = 8; /* the record's sizes are multiples of eight */
    img_set_phdr(&im, 1, &p);
    ck_assert_msg(parse(&im), "%s", why.text);
    /* in two segments, which may even be the same bytes */
    img_make(&im);
    p = img_phdr(&im, 1);
    img_set_phdr(&im, 3, &p);
    bad(&im, "two plugin notes");
}
END_TEST

START_TEST(segments_that_lie)
{
    struct elf_image im;
    img_make(&im);
    Elf64_Phdr p = img_phdr(&im, 1);
    p.p_offset = UINT64_MAX - 8;
    img_set_phdr(&im, 1, &p);
    bad(&im, "notes lies beyond");
    p.p_offset = IMG_NOTES;
    p.p_filesz = IMG_BYTES;
    img_set_phdr(&im, 1, &p);
    bad(&im, "notes lies beyond");
    img_make(&im);
    p = img_phdr(&im, 2);
    p.p_offset = IMG_BYTES + 1;
    img_set_phdr(&im, 2, &p);
    bad(&im, "no dynamic section");
    p.p_offset = IMG_BYTES - 8;
    img_set_phdr(&im, 2, &p);
    bad(&im, "dynamic section is damaged");
    p.p_type = PT_NULL;
    img_set_phdr(&im, 2, &p);
    bad(&im, "no dynamic section");
    img_make(&im);
    p = img_phdr(&im, 0);
    p.p_filesz = 16; /* nothing is mapped any more */
    img_set_phdr(&im, 0, &p);
    bad(&im, "names no tables");
    p.p_filesz = UINT64_MAX;
    p.p_offset = UINT64_MAX - 4; /* offset + address wraps */
    img_set_phdr(&im, 0, &p);
    bad(&im, "names no tables");
}
END_TEST

START_TEST(tables_that_lie)
{
    struct elf_image im;
    static const struct {
        int entry;
        int64_t tag;
        uint64_t value;
        const char *word;
    } bent[] = {{2, DT_STRTAB, IMG_BYTES, "names no tables"},
                {2, DT_STRTAB, UINT64_MAX, "names no tables"},
                {4, DT_SYMTAB, UINT64_MAX - 24, "names no tables"},
                {5, DT_SYMENT, 16, "names no tables"},
                {4, DT_SYMTAB, IMG_BYTES - 8, "table of dynamic symbols"},
                {6, DT_HASH, IMG_BYTES - 4, "table of dynamic symbols"},
                {6, DT_HASH, IMG_STR, "table of dynamic symbols"},
                {6, DT_GNU_HASH, IMG_BYTES - 8, "table of dynamic symbols"},
                {6, DT_GNU_HASH, IMG_STR, "table of dynamic symbols"}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(bent); ++i) {
        img_make(&im);
        img_set_dyn(&im, bent[i].entry, bent[i].tag, bent[i].value);
        bad(&im, bent[i].word);
    }
    img_make(&im);
    img_set_dyn(&im, 6, DT_GNU_HASH, IMG_GNU);
    const uint32_t far = 0xfffffff0;
    img_put(&im, IMG_GNU + 24, &far, 4); /* a bucket far outside */
    bad(&im, "table of dynamic symbols");
    img_make(&im);
    img_set_dyn(&im, 6, DT_GNU_HASH, IMG_GNU);
    memset(im.b + IMG_GNU + 28, 2, IMG_BYTES - IMG_GNU - 28); /* a chain without end */
    bad(&im, "table of dynamic symbols");
    img_make(&im);
    img_set_dyn(&im, 0, DT_NEEDED, UINT64_MAX); /* names outside the texts are left out */
    img_set_dyn(&im, 3, DT_STRSZ, 22);
    ck_assert(parse(&im));
    ck_assert_str_eq(file.needed, "libdl.so.2");
    ck_assert_uint_eq(file.n_needed, 2);
    ck_assert_uint_eq(file.flags & BPI_PF_ENTRY, 0); /* its name now lies outside */
    ck_assert(!bpi_plugin_file_check(&file, &why));
    says_why(BP_R_LOAD, BP_PLUGIN_ENTRY);
}
END_TEST

START_TEST(cut_anywhere)
{
    struct elf_image im;
    size_t n_refused = 0;
    img_make(&im);
    for (im.n = 0; im.n < IMG_BYTES; ++im.n) {
        if (parse(&im)) continue;
        ck_assert_str_ne(why.text, "");
        n_refused++;
    }
    ck_assert_uint_gt(n_refused, IMG_HASH);
}
END_TEST

START_TEST(every_byte_bent)
{
    struct elf_image im;
    static const unsigned char with[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    size_t n_refused = 0, n_good = 0;
    for (int gnu = 0; gnu < 2; ++gnu) {
        for (size_t i = 0; i < IMG_BYTES; ++i) {
            for (size_t k = 0; k < sizeof with; ++k) {
                img_make(&im);
                if (gnu != 0) img_set_dyn(&im, 6, DT_GNU_HASH, IMG_GNU);
                im.b[i] = with[k];
                if (parse(&im) && bpi_plugin_file_check(&file, &why))
                    n_good++;
                else
                    n_refused++;
            }
        }
    }
    ck_assert(n_refused > 1000 && n_good > 1000);
}
END_TEST

START_TEST(lists_lose_what_does_not_fit)
{
    struct elf_image im;
    img_make(&im);
    for (int i = 0; i < 7; ++i) img_set_dyn(&im, i, DT_NEEDED, 1);
    img_set_dyn(&im, 7, DT_STRTAB, IMG_STR);
    img_set_dyn(&im, 8, DT_STRSZ, 200);
    img_set_dyn(&im, 9, DT_SYMTAB, IMG_SYM);
    img_set_dyn(&im, 10, DT_SYMENT, sizeof(Elf64_Sym));
    memset(im.b + IMG_STR + 1, 'l', 99); /* names of 99 bytes: five fit */
    im.b[IMG_STR + 100] = '\0';
    Elf64_Phdr p = img_phdr(&im, 2);
    p.p_filesz = 11 * sizeof(Elf64_Dyn);
    img_set_phdr(&im, 2, &p);
    ck_assert_msg(parse(&im), "%s", why.text);
    ck_assert_uint_eq(file.n_needed, 7);
    ck_assert_uint_eq(strlen(file.needed), 5 * 100 - 1);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {a_whole_image,
                                  flags_are_seen,
                                  headers_that_are_not_ours,
                                  notes_that_are_broken,
                                  notes_that_are_not_for_us,
                                  two_notes,
                                  segments_that_lie,
                                  tables_that_lie,
                                  cut_anywhere,
                                  every_byte_bent,
                                  lists_lose_what_does_not_fit};
    return run_suite("loader_note", tests, BPI_ARRAY_LEN(tests));
}
