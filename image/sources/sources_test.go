package sources

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"

	"rivulet/image/debian"
)

// Each package of the bundle and of the images has its sources in the lock at its version and hash, and the lock has
// nothing more.
func TestLockIsOfBothLists(t *testing.T) {
	l, err := Read("../..")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Parse(l.Format()); err != nil || !reflect.DeepEqual(again, l) {
		t.Errorf("it is not read as it is written: %v", err)
	}
	// Those whose own source is not all that is in them.
	for name, wants := range map[string]string{"busybox-static": "glibc=", "linux-image-6": "linux=", "linux-binary-": "linux=", "shim-signed": "shim=", "systemd-boot-efi-amd64-signed": "systemd=", "libc6": "glibc=", "syslinux": "syslinux="} {
		if !slices.ContainsFunc(l.Binaries, func(b Binary) bool {
			return strings.HasPrefix(b.Name, name) && slices.ContainsFunc(b.Sources, func(s debian.SourceVersion) bool { return strings.HasPrefix(s.String(), wants) })
		}) {
			t.Errorf("%s is not built of %s", name, wants)
		}
	}
}

func TestWhatDiffersIsNamed(t *testing.T) {
	sum := strings.Repeat("0", 64)
	debs := []debian.Deb{{Arch: "amd64", Name: "bash", Version: "5-1+b1", SHA256: sum}, {Arch: "all", Name: "tzdata", Version: "2026", SHA256: sum}}
	const bash, tzdata = "deb amd64 bash 5-1+b1 SUM bash=5-1 glibc=2\n", "deb all tzdata 2026 SUM tzdata=2026\n"
	const files = "file SUM bash=5-1 bash_5-1.dsc\nfile SUM bash=5-1 bash_5.orig.tar.xz\nfile SUM glibc=2 glibc_2.dsc\nfile SUM tzdata=2026 tzdata_2026.dsc\n"
	for text, want := range map[string]string{
		bash + tzdata + files: "",
		bash + files:          "tzdata 2026 (all) has no sources",
		strings.Replace(bash, "SUM", sum[1:]+"1", 1) + tzdata + files:           "bash 5-1+b1 (amd64) has no sources",
		strings.Replace(bash, "5-1+b1", "5-1", 1) + tzdata + files:              "bash 5-1 (amd64) is in",
		bash + tzdata + "deb all more 1 SUM tzdata=2026\n" + files:              "more 1 (all) is in",
		bash + tzdata + files + "file SUM more=1 more_1.dsc\n":                  "more_1.dsc is in",
		bash + tzdata + strings.Replace(files, "glibc_2.dsc", "glibc_2.tar", 1): "glibc=2, which has no files",
		"deb amd64 bash 5-1+b1 SUM\n":                                           "line 1: it begins with neither",
		"file abc bash=1 bash_1.dsc\n":                                          `line 1: "abc" is not a SHA-256`,
		"file SUM bash=1 ../bash_1.dsc\n":                                       "is no file name",
		files + "file " + sum[1:] + "1 other=1 bash_5-1.dsc\n":                  "line 5: bash_5-1.dsc is there twice",
	} {
		l, err := Parse([]byte(strings.ReplaceAll(text, "SUM", sum)))
		if err == nil {
			err = l.check(debs)
		}
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "; make source-lock")) {
			t.Errorf("%q: %v, want %q and a cure", text, err, want)
		}
	}
}

// SOURCES of what is given out names each Debian package in it, and no other, and both archives by name.
func TestSourcesAreOfTheVeryArtefact(t *testing.T) {
	for name, tc := range map[string]struct {
		text        func() ([]byte, error)
		has, hasNot []string
		least       int
	}{
		"bundle":    {func() ([]byte, error) { return OfBundle("../..", "v1", "armv7") }, []string{"iptables 1.8", "armhf: iptables="}, []string{"amd64", "busybox"}, 8},
		"image":     {func() ([]byte, error) { return OfImage("../..", "v1", "amd64") }, []string{"iptables 1.8", "busybox-static ", "syslinux "}, []string{"armhf", "arm64", "raspi"}, 130},
		"raspi":     {func() ([]byte, error) { return OfImage("../..", "v1", "arm64") }, []string{"raspi-firmware "}, []string{"amd64", "syslinux"}, 130},
		"all":       {func() ([]byte, error) { return OfAll("../..", "v1") }, []string{"armhf", "syslinux ", "raspi-firmware "}, nil, 250},
		"no bundle": {func() ([]byte, error) { return OfBundle("../..", "v1", "riscv64") }, nil, nil, 0},
	} {
		text, err := tc.text()
		if tc.least == 0 {
			if err == nil {
				t.Errorf("%s: %s", name, text)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte(": ")); n < tc.least {
			t.Errorf("%s has %d packages: %s", name, n, text)
		}
		for _, want := range append(tc.has, "rivulet-v1-sources.tar", "rivulet-v1-src.tar.zst") {
			if !bytes.Contains(text, []byte(want)) {
				t.Errorf("%s has no %q: %s", name, want, text)
			}
		}
		for _, other := range tc.hasNot {
			if bytes.Contains(text, []byte(other)) {
				t.Errorf("%s has %q: %s", name, other, text)
			}
		}
	}
}
