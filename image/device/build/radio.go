package main

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Files of the image with the settings of Wi-Fi.
const (
	iwdSettings   = "usr/lib/rivulet/iwd.conf"
	driverOptions = "usr/lib/modprobe.d/rivulet.conf"
)

// features are those of the Raspberry Pi's Wi-Fi driver that driverOptions disables, by their place in the driver's
// list. Of the two that it does not name (FWSUP, DUMP_OBSS) the neighbours are checked.
var features = map[string]uint32{"monitor": 13 + 1, "sae": 19, "idauth": 21 - 1}

// disabled are the places of FWSUP and DUMP_OBSS.
const disabled = 1<<13 | 1<<21

// radio checks that this iwd and this kernel know the settings of Wi-Fi in the image: neither reports one that it does
// not know, and a kernel may number the features of its driver anew.
func (j *job) radio() error {
	settings, err := os.ReadFile(j.in(iwdSettings))
	if err != nil {
		return err
	}
	iwd, err := os.ReadFile(j.in("usr/libexec/iwd"))
	if err != nil {
		return err
	}
	for _, m := range setting.FindAllSubmatch(settings, -1) {
		if !bytes.Contains(iwd, append(m[1], 0)) {
			return fmt.Errorf("this iwd has no setting %s; look at its manual, and mend %s", m[1], iwdSettings)
		}
	}
	if err := j.signIn(); err != nil {
		return err
	}
	if j.arch != "arm64" {
		return nil // the other image has no firmware for the chip
	}
	found, _ := filepath.Glob(j.in("usr/lib/modules", j.kernel, "kernel/drivers/net/wireless/broadcom/brcm80211/brcmfmac/brcmfmac.ko*"))
	if len(found) != 1 {
		return fmt.Errorf("%d drivers brcmfmac in kernel %s; the Raspberry Pi would have no Wi-Fi", len(found), j.kernel)
	}
	raw, err := os.ReadFile(found[0])
	if err != nil {
		return err
	}
	if strings.HasSuffix(found[0], ".xz") {
		cmd := exec.Command("xz", "-dc")
		cmd.Stdin = bytes.NewReader(raw)
		if raw, err = cmd.Output(); err != nil {
			return fmt.Errorf("xz -d %s: %w", found[0], err)
		}
	}
	options, err := os.ReadFile(j.in(driverOptions))
	if err != nil {
		return err
	}
	if err := checkDriver(raw, string(options)); err != nil {
		return fmt.Errorf("brcmfmac of kernel %s: %w; mend %s by its feature.h", j.kernel, err, driverOptions)
	}
	return nil
}

// signInModules are what iwd asks the kernel for at a sign-in by 802.1X: MSCHAPv2, TLS, keys; and what networkd makes.
var signInModules = []string{"md4", "des_generic", "ecb", "cbc", "algif_hash", "algif_skcipher", "cmac", "pkcs8_key_parser", "8021q", "bonding", "bridge"}

// signIn checks that the image has what the files of the folder network on a card need. No program reports before the
// sign-in that something is missing.
func (j *job) signIn() error {
	var modules []byte
	for _, index := range []string{"modules.builtin", "modules.dep"} {
		raw, err := os.ReadFile(j.in("usr/lib/modules", j.kernel, index))
		if err != nil {
			return err
		}
		modules = append(modules, raw...)
	}
	for _, m := range signInModules {
		if !bytes.Contains(modules, []byte("/"+m+".ko")) {
			return fmt.Errorf("kernel %s has no module %s; a device could not sign in to its network (802.1X, VLAN)", j.kernel, m)
		}
	}
	supplicant, err := os.ReadFile(j.in("usr/sbin/wpa_supplicant"))
	if err != nil || !bytes.Contains(supplicant, []byte("\x00wired\x00")) {
		return fmt.Errorf("wpa_supplicant has no driver for cables (%v); packages.list names it", err)
	}
	// MSCHAPv2 is made of MD4, which OpenSSL has there alone.
	if found, _ := filepath.Glob(j.in("usr/lib/*/ossl-modules/legacy.so")); len(found) != 1 {
		return errors.New("OpenSSL has no legacy.so; a device could not sign in by MSCHAPv2 on a cable")
	}
	return nil
}

var setting = regexp.MustCompile(`(?m)^([A-Za-z]+)=`)

// checkDriver compares a driver with options brcmfmac NAME=VALUE ....
func checkDriver(driver []byte, options string) error {
	_, options, _ = strings.Cut(options, "\noptions brcmfmac ")
	mask := uint64(0)
	for _, o := range strings.Fields(options) {
		name, value, _ := strings.Cut(o, "=")
		if !bytes.Contains(driver, []byte("parm="+name+":")) {
			return fmt.Errorf("it has no option %s", name)
		}
		if name == "feature_disable" {
			mask, _ = strconv.ParseUint(value, 0, 31) // 0 is refused below
		}
	}
	places, err := featurePlaces(driver)
	if err != nil {
		return err
	}
	want := uint64(disabled)
	for _, name := range slices.SortedFunc(maps.Keys(features), func(a, b string) int { return cmp.Compare(features[a], features[b]) }) {
		place := features[name]
		if places[name] != place {
			return fmt.Errorf("its feature %s has the place %d, not %d", name, places[name], place)
		}
	}
	for name, place := range places {
		if strings.HasPrefix(name, "sae") {
			want |= 1 << place
		}
	}
	if mask != want {
		return fmt.Errorf("feature_disable is %#x, FWSUP, DUMP_OBSS and all of SAE are %#x", mask, want)
	}
	return nil
}

// featurePlaces reads the driver's table of pairs: a feature's place, and a pointer to its name in the chip's firmware.
func featurePlaces(driver []byte) (map[string]uint32, error) {
	f, err := elf.NewFile(bytes.NewReader(driver))
	if err != nil {
		return nil, err
	}
	syms, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	for _, s := range syms {
		if s.Name != "brcmf_fwcap_map" || int(s.Section) >= len(f.Sections) {
			continue
		}
		table, err := f.Sections[s.Section].Data()
		if err != nil {
			return nil, err
		}
		places := map[string]uint32{}
		for _, rela := range f.Sections {
			if rela.Type != elf.SHT_RELA || rela.Info != uint32(s.Section) {
				continue
			}
			raw, err := rela.Data()
			if err != nil {
				return nil, err
			}
			for ; len(raw) >= 24; raw = raw[24:] { // a place in the section, a symbol, a distance from it
				at, of, beyond := binary.LittleEndian.Uint64(raw), binary.LittleEndian.Uint64(raw[8:])>>32, binary.LittleEndian.Uint64(raw[16:])
				if at < s.Value+8 || at >= s.Value+s.Size || of == 0 || of > uint64(len(syms)) || at > uint64(len(table)) {
					continue
				}
				target := syms[of-1]
				if int(target.Section) >= len(f.Sections) {
					continue
				}
				text, err := f.Sections[target.Section].Data()
				if begin := target.Value + beyond; err == nil && begin < uint64(len(text)) {
					name, _, _ := bytes.Cut(text[begin:], []byte{0})
					places[strings.TrimSpace(string(name))] = binary.LittleEndian.Uint32(table[at-8:])
				}
			}
		}
		return places, nil
	}
	return nil, errors.New("it has no table brcmf_fwcap_map")
}
