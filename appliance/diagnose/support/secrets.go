package support

import (
	"encoding/base64"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"rivulet/appliance/config/sqlserver"
	"rivulet/appliance/diagnose/redact"
	"rivulet/appliance/state/paths"
)

// fileMax bounds what is read of a file with secrets, bytes.
const fileMax = 16 << 20

// named matches values with the name of a secret, in JSON, YAML and in the raw pages of state.db, which may be locked
// or damaged.
var named = regexp.MustCompile(`(?i)["']?[\w.-]*(?:seed|wireguard|passw|passphrase|secret|token|psk|key-data|private|auth|join)[\w.-]*["']?[ \t]*[:=][ \t]*["']?([^\s"',;}{\[\]]{6,512})`)

// elsewhere matches files that a configuration names.
var elsewhere = regexp.MustCompile(`(?im)^[ \t-]*(secretFile|kubeconfig)[ \t]*:[ \t]*(\S+)`)

// database matches the address of an SQL server in a configuration.
var database = regexp.MustCompile(`(?im)^[ \t]*["']?datastore["']?[ \t]*:[ \t]*["']?([^\s"']+)`)

// Secrets are this device's secrets, in the forms in which they could appear in a log or a list. They are removed from
// everything in the archive.
func (d Device) Secrets() []string {
	var out []string
	k3s := filepath.Join(d.State, "k3s")
	whole := []string{"server/token", "server/agent-token", "server/node-token", "agent/node-password", "server/cred/ipsec.psk"}
	for _, name := range whole {
		text := contents(filepath.Join(k3s, name))
		out = append(out, strings.TrimSpace(text))
		// Also the secret half of K10<hash>::server:<secret>.
		out = append(out, strings.TrimSpace(text[strings.LastIndex(text, ":")+1:]))
	}
	for _, f := range []string{"/etc/rancher/node/password", filepath.Join(k3s, "agent/etc/rancher/node/password"), filepath.Join(d.State, "node/password")} {
		out = append(out, strings.TrimSpace(contents(f)))
	}
	for _, f := range []string{filepath.Join(k3s, "server/cred/passwd")} { // CSV: password,user,…
		for line := range strings.Lines(contents(f)) {
			secret, _, _ := strings.Cut(line, ",")
			out = append(out, strings.TrimSpace(secret))
		}
	}
	// Lines of private keys, for a log with a part of one.
	filepath.WalkDir(k3s, func(path string, e fs.DirEntry, err error) error { //nolint:errcheck // what cannot be read cannot leak
		if err != nil {
			return nil //nolint:nilerr // what cannot be read cannot leak
		}
		if e.IsDir() && (e.Name() == "containerd" || e.Name() == "db" || e.Name() == "images") {
			return fs.SkipDir
		}
		if !e.IsDir() && strings.HasSuffix(e.Name(), ".key") {
			out = append(out, keyLines(contents(path))...)
		}
		return nil
	})
	texts := []string{paths.Store(d.State), paths.Kubeconfig(d.State)}
	for _, pattern := range []string{d.ConfigDir + "/*", filepath.Join(k3s, "server/cred/*.kubeconfig"), filepath.Join(k3s, "agent/*.kubeconfig")} {
		found, _ := filepath.Glob(pattern)
		texts = append(texts, found...)
	}
	texts = append(texts, paths.GoodConfig(d.State))
	for _, f := range slices.Clone(texts) { // files named by the configuration are secret, too
		for _, m := range elsewhere.FindAllStringSubmatch(contents(f), -1) {
			if path := strings.Trim(m[2], `"'`); strings.EqualFold(m[1], "secretFile") {
				out = append(out, strings.TrimSpace(contents(path)))
			} else {
				texts = append(texts, path)
			}
		}
	}
	for _, f := range texts {
		for _, m := range database.FindAllStringSubmatch(contents(f), -1) {
			out = append(out, sqlserver.Secrets(m[1])...)
		}
		for _, m := range named.FindAllStringSubmatch(contents(f), -1) {
			// A path or a plain word of a configuration is none.
			if v := m[1]; !strings.HasPrefix(v, "/") && !slices.Contains([]string{"default", "system:admin"}, v) {
				out = append(out, v)
				// A base64 key may also appear decoded.
				if raw, err := base64.StdEncoding.DecodeString(v); err == nil && strings.HasPrefix(string(raw), "-----BEGIN") {
					out = append(out, keyLines(string(raw))...)
				}
			}
		}
	}
	out = slices.DeleteFunc(out, func(s string) bool { return s == "" })
	for _, s := range slices.Clone(out) {
		// In Kubernetes' form (base64); the last bytes of a group depend on what follows.
		if whole := s[:len(s)/3*3]; len(whole) >= redact.Shortest {
			out = append(out, base64.StdEncoding.EncodeToString([]byte(whole)))
		}
	}
	return out
}

// keyLines are the lines of a PEM block with content.
func keyLines(text string) (out []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); len(line) >= 16 && !strings.HasPrefix(line, "-----") {
			out = append(out, line)
		}
	}
	return out
}

func contents(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	raw, _ := io.ReadAll(io.LimitReader(f, fileMax)) // as much as could be read
	return string(raw)
}

func sorted(parts []Part) []Part {
	slices.SortFunc(parts, func(a, b Part) int { return strings.Compare(a.Name, b.Name) })
	return parts
}
