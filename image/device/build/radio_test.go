package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/image/device/files"
)

// driver is a program with the parts of brcmfmac that are checked.
const driver = `
enum f { MBSS, MONITOR = 14, SAE = 19, FWAUTH, SAE_EXT = 25 };
struct map { enum f id; const char *name; };
static const struct map brcmf_fwcap_map[] = { { MBSS, "mbss" }, { MONITOR, "monitor" }, { SAE, "sae " }, { FWAUTH, "idauth" }, { SAE_EXT, "sae_ext" } };
const char parm[] = "parm=roamoff:Do not roam\0parm=feature_disable:Disable features";
const struct map *use(int i) { return &brcmf_fwcap_map[i]; }
`

func compiled(t *testing.T, text string) []byte {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		lacking(t, "gcc")
	}
	from, to := filepath.Join(t.TempDir(), "d.c"), filepath.Join(t.TempDir(), "d.o")
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-O1", "-fno-pic", "-c", "-o", to, from).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	raw, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// The settings of Wi-Fi fit the iwd and the driver in the image, or the build ends: neither of them says that it does
// not know one.
func TestWiFiOfTheImage(t *testing.T) {
	var conf, options string
	for path, text := range map[string]*string{iwdSettings: &conf, driverOptions: &options} {
		raw, err := files.Root.ReadFile("root/" + path)
		if err != nil {
			t.Fatal(err)
		}
		*text = string(raw)
	}
	good := compiled(t, driver)
	j := &job{root: t.TempDir(), arch: "arm64", kernel: "7.3"}
	module := j.in("usr/lib/modules/7.3/kernel/drivers/net/wireless/broadcom/brcm80211/brcmfmac/brcmfmac.ko")
	iwd := "SaeDisable\x00PowerSaveDisable\x00"
	sign := map[string]string{"usr/lib/modules/7.3/modules.builtin": "kernel/crypto/ecb.ko\nkernel/crypto/cbc.ko\n", "usr/lib/modules/7.3/modules.dep": "", "usr/sbin/wpa_supplicant": "\x00wired\x00", "usr/lib/aarch64-linux-gnu/ossl-modules/legacy.so": "x"}
	for _, m := range signInModules[:2] {
		sign["usr/lib/modules/7.3/modules.dep"] += "kernel/crypto/" + m + ".ko.xz:\n"
	}
	for _, m := range signInModules[4:] {
		sign["usr/lib/modules/7.3/modules.dep"] += "kernel/crypto/" + m + ".ko.xz: kernel/lib/crypto/libdes.ko.xz\n"
	}
	for path, text := range sign {
		if err := put(j.in(path), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what, want string, iwd, conf string, driver []byte, options string) {
		t.Helper()
		for path, text := range map[string]string{j.in(iwdSettings): conf, j.in(driverOptions): options, j.in("usr/libexec/iwd"): iwd, module: string(driver)} {
			if err := put(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		err := j.radio()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	with := func(old, new string) []byte { return compiled(t, strings.Replace(driver, old, new, 1)) }
	check("as it is", "", iwd, conf, good, options)
	check("another iwd", "this iwd has no setting PowerSaveDisable", "SaeDisable\x00", conf, good, options)
	check("a driver without SAE of user space", "feature_disable is 0x2282000, FWSUP, DUMP_OBSS and all of SAE are 0x282000", iwd, conf, with(`, { SAE_EXT, "sae_ext" }`, ""), options)
	check("features with other numbers", "its feature sae has the place 20", iwd, conf, with("SAE = 19", "SAE = 20"), options)
	check("the numbers of another kernel", "SAE are 0x2282000", iwd, conf, good, strings.Replace(options, "0x2282000", "0x282000", 1))
	check("no option", "it has no option roamoff", iwd, conf, with("roamoff", "roaming"), options)
	check("no table", "no table", iwd, conf, compiled(t, strings.ReplaceAll(driver, "brcmf_fwcap_map", "another")), options)
	for path, lacks := range map[string][2]string{
		"usr/lib/modules/7.3/modules.dep":                  {"/md4.ko", "no module md4"},
		"usr/lib/modules/7.3/modules.builtin":              {"/ecb.ko", "no module ecb"},
		"usr/sbin/wpa_supplicant":                          {"wired", "no driver for cables"},
		"usr/lib/aarch64-linux-gnu/ossl-modules/legacy.so": {"", "no legacy.so"},
	} {
		if lacks[0] == "" {
			if err := os.Remove(j.in(path)); err != nil {
				t.Fatal(err)
			}
		} else if err := put(j.in(path), strings.Replace(sign[path], lacks[0], "", 1), 0o644); err != nil {
			t.Fatal(err)
		}
		check(path, lacks[1], iwd, conf, good, options)
		if err := put(j.in(path), sign[path], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check("mended", "", iwd, conf, good, options)
	if err := os.Remove(module); err != nil {
		t.Fatal(err)
	}
	if err := j.radio(); err == nil || !strings.Contains(err.Error(), "0 drivers brcmfmac") {
		t.Errorf("no driver: %v", err)
	}
}
