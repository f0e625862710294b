package firstboot

import (
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"rivulet/appliance/config"
	"rivulet/fabric/cure"
)

// wiredName is the file with the sign-in of the cable; the others are named for Wi-Fi networks.
const wiredName = "wired.8021x"

// secretKey matches keys of iwd whose values leave the card.
var secretKey = regexp.MustCompile(`(Password|Passphrase|PreSharedKey)$`)

// fileKey matches keys of iwd that name a file.
var fileKey = regexp.MustCompile(`(CACert|ClientCert|ClientKey|ClientKeyBundle)$`)

// publicCAs are the image's certificate authorities.
const publicCAs = "/etc/ssl/certs/ca-certificates.crt"

// escapes of iwd, and how they are undone.
var (
	escaped  = regexp.MustCompile(`^(?:[^\\]|\\[strn\\])*$`)
	unescape = strings.NewReplacer(`\\`, `\`, `\s`, " ", `\t`, "\t", `\r`, "\r", `\n`, "\n").Replace
)

// iwd takes the file of a Wi-Fi network, or of the cable.
func (f *folder) iwd(s *sheet, ext string) {
	name := s.name
	stem := name[:len(name)-len(ext)]
	wired := stem+ext == wiredName
	to := signInDir + "/" + wiredName
	if !wired {
		ssid := stem
		if raw, err := hex.DecodeString(strings.TrimPrefix(stem, "=")); err == nil && strings.HasPrefix(stem, "=") {
			ssid = string(raw)
		}
		if strings.ContainsFunc(stem, func(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(`:?*"<>|\`, r) }) {
			f.problem(name, 0, "the boot partition cannot keep this name", fmt.Sprintf("name the file =%x%s", ssid, ext))
		}
		if len(ssid) > 32 || ssid == "" {
			f.problem(name, 0, "the name of a network has 1 to 32 bytes, this one "+fmt.Sprint(len(ssid)), "name the file for the network, letter by letter")
		}
		to = filepath.Join(wifiDir, ssidFile(ssid)+ext)
	}
	full, card := map[int]string{}, map[int]string{}
	var kept *sheet
	if raw := f.kept(to); raw != nil {
		kept = parseSheet(name, string(raw), func(int, string, string) {})
	}
	for _, k := range s.settings {
		switch {
		case secretKey.MatchString(k.key) && k.value == config.Moved:
			has := setting{}
			if kept != nil {
				has, _ = kept.get(k.section + "." + k.key)
			}
			if full[k.line] = has.value; has.value == "" {
				full[k.line] = k.value
				f.problem(name, k.line, k.key+" was moved into another device, and this one does not have it", "write it again")
			}
		case secretKey.MatchString(k.key) && strings.Contains(k.value, strings.Trim(config.Moved, "()")):
			f.problem(name, k.line, k.key+" is not what the device has left there", "write the password, or "+config.Moved+" alone")
		case secretKey.MatchString(k.key) && k.value != "":
			card[k.line] = config.Moved
		case fileKey.MatchString(k.key):
			path, err := f.signInFile(k.value)
			if err != nil {
				text, do := cure.Split(err)
				f.problem(name, k.line, k.key+": "+text, do)
			}
			full[k.line] = path
		}
		if !escaped.MatchString(k.value) {
			f.problem(name, k.line, k.key+" has a single backslash", `write a backslash as \\, and a blank at the beginning as \s`)
		}
	}
	if len(card) > 0 {
		f.left[name] = s.with(card)
	}
	whole := s.filled(full)
	switch ext {
	case ".psk":
		f.psk(whole)
	case ".8021x":
		f.eap(whole)
	}
	f.add(name, to, whole.with(nil))
	if wired {
		f.add(name, signInDir+"/wired.conf", f.supplicant(whole))
	}
}

// signInFile returns the path on the device of a file that a sign-in names.
func (f *folder) signInFile(name string) (string, error) {
	if name == publicCAs || filepath.Dir(name) == signInDir && f.files[filepath.Base(name)] != nil {
		return name, nil
	}
	if config.OnCard(name) && f.files[name] != nil {
		return signInDir + "/" + name, nil
	}
	if strings.HasPrefix(name, "/") {
		return "", cure.Errorf("the device has no %.80q; put the file into the folder and write its name alone, or %s for the public authorities", name, publicCAs)
	}
	return "", cure.Errorf("there is no file %.80q in the folder; put it there, and write its name as it is, with small and capital letters", name)
}

func (f *folder) psk(s *sheet) {
	if k, ok := s.get("Security.Passphrase"); ok {
		if err := config.CheckWiFiPassword(unescape(k.value)); len(unescape(k.value)) == 64 {
			f.problem(s.name, k.line, k.key+" has 64 characters, one too many", "if it is the key of the network, write it as PreSharedKey=")
		} else if err != nil {
			text, do := cure.Split(err)
			f.problem(s.name, k.line, k.key+": "+text, do)
		}
	} else if k, ok := s.get("Security.PreSharedKey"); !ok {
		f.problem(s.name, 0, "it has no Passphrase", "add [Security], and below it Passphrase=, or end its name in .open if the network has no password")
	} else if raw, err := hex.DecodeString(k.value); err != nil || len(raw) != 32 {
		f.problem(s.name, k.line, k.key+" has not 64 hexadecimal digits", "write Passphrase= with the password of the network instead")
	}
}

// needed are the settings without which a method ends: nobody is there to be asked.
var needed = map[string][]string{
	"PEAP": {"EAP-Identity", "EAP-PEAP-CACert", "EAP-PEAP-ServerDomainMask", "EAP-PEAP-Phase2-Method", "EAP-PEAP-Phase2-Identity", "EAP-PEAP-Phase2-Password"},
	"TTLS": {"EAP-Identity", "EAP-TTLS-CACert", "EAP-TTLS-ServerDomainMask", "EAP-TTLS-Phase2-Method", "EAP-TTLS-Phase2-Identity", "EAP-TTLS-Phase2-Password"},
	"TLS":  {"EAP-Identity", "EAP-TLS-CACert"},
	"PWD":  {"EAP-Identity", "EAP-Password"},
}

// eap checks that a method has what it needs, and nothing of another one.
func (f *folder) eap(s *sheet) {
	method, ok := s.get("Security.EAP-Method")
	if !ok {
		f.problem(s.name, 0, "it has no EAP-Method", "add [Security], and below it for example EAP-Method=PEAP; the university's page on eduroam names it")
		return
	}
	if needed[method.value] == nil {
		return // it is told with the line
	}
	for _, key := range needed[method.value] {
		if _, ok := s.get("Security." + key); ok {
			continue
		}
		do := "add the line " + key + "="
		if strings.HasSuffix(key, "CACert") {
			do += ", with the name of the certificate of the university's authority, and put that file into the folder: without it any access point with this name would get the password"
		}
		if strings.HasSuffix(key, "ServerDomainMask") {
			do += ", with the name of the university's server, for example radius.uni.example: others can have a certificate of the same authority"
		}
		f.problem(s.name, method.line, method.value+" needs "+key, do)
	}
	prefix := "EAP-" + method.value + "-"
	for _, k := range s.settings {
		if strings.Count(k.key, "-") > 1 && strings.HasPrefix(k.key, "EAP-") && !strings.HasPrefix(k.key, prefix) || k.key == "EAP-Password" && method.value != "PWD" {
			f.problem(s.name, k.line, k.key+" is not of the method "+method.value, "remove it, or change EAP-Method; keys of this method begin with "+prefix)
		}
	}
	if method.value == "TLS" {
		_, cert := s.get("Security.EAP-TLS-ClientCert")
		_, key := s.get("Security.EAP-TLS-ClientKey")
		if _, both := s.get("Security.EAP-TLS-ClientKeyBundle"); !both && !(cert && key) {
			f.problem(s.name, method.line, "TLS needs EAP-TLS-ClientCert and EAP-TLS-ClientKey, or EAP-TLS-ClientKeyBundle", "put the device's own certificate and key into the folder, and name them here")
		}
	}
}

// supplicant makes wpa_supplicant's settings of the sign-in of the cable: Debian's iwd has no program for cables. Texts
// are in hexadecimal, since wpa_supplicant has no escape for a quotation mark.
func (f *folder) supplicant(s *sheet) []byte {
	value := func(key string) string { k, _ := s.get("Security." + key); return k.value }
	method := value("EAP-Method")
	prefix := "EAP-" + method + "-"
	// Without a network a clock may be years behind, and stays so: the certificate's dates are not checked, its authority and
	// the server's name are.
	lines := []string{"# Made by rivulet firstboot of " + wiredName + " on the boot partition.", "ap_scan=0", "network={", "key_mgmt=IEEE8021X", "eapol_flags=0", "eap=" + method}
	text := func(to, value string) {
		if value != "" {
			lines = append(lines, to+"="+hex.EncodeToString([]byte(unescape(value))))
		}
	}
	if inner := value(prefix + "Phase2-Method"); inner != "" {
		text("anonymous_identity", value("EAP-Identity"))
		text("identity", value(prefix+"Phase2-Identity"))
		text("password", value(prefix+"Phase2-Password"))
		how := "auth="
		if method == "TTLS" && !strings.HasPrefix(inner, "Tunneled-") {
			how = "autheap="
		}
		text("phase2", how+strings.ToUpper(strings.TrimPrefix(inner, "Tunneled-")))
	} else {
		text("identity", value("EAP-Identity"))
		text("password", value("EAP-Password"))
	}
	text("ca_cert", value(prefix+"CACert"))
	if method != "PWD" {
		text("phase1", "tls_disable_time_checks=1")
	}
	text("client_cert", value(prefix+"ClientCert"))
	text("private_key", value(prefix+"ClientKey")+value(prefix+"ClientKeyBundle"))
	text("private_key_passwd", value(prefix+"ClientKeyPassphrase"))
	if k, ok := s.get("Security." + prefix + "ServerDomainMask"); ok {
		masks := strings.ReplaceAll(";"+k.value, ";*.", ";")[1:]
		if strings.Contains(masks, "*") {
			f.problem(s.name, k.line, k.key+" has an asterisk that is not at its beginning", "write for example *.uni.example")
		}
		to := "domain_match"
		if masks != k.value {
			to = "domain_suffix_match"
		}
		text(to, masks)
	}
	if value(prefix+"FastReauthentication") == "false" {
		lines[1] += "\nfast_reauth=0"
	}
	return []byte(strings.Join(append(lines, "}"), "\n") + "\n")
}
