package config

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"rivulet/fabric/cure"
)

// CardName is the optional file on the boot partition of a device's card: the configuration, and further settings of a
// device without a screen.
const CardName = "rivulet.yaml"

// Moved replaces a secret in that file once the device has stored it.
const Moved = "(moved into the device)"

// Card has the settings of that file only.
type Card struct {
	WiFi []WiFi
	// SSHKeys are the lines of authorized_keys; without any there is no SSH.
	SSHKeys []string
	Country string // of the radio: two letters
	root    *yaml.Node
}

// WiFi is a network to join.
type WiFi struct {
	SSID string
	// Password is empty for an open network, Moved if the device has it.
	Password Secret
	Hidden   bool
}

// ParseCard reads and checks such a file. Problems have their key, so that valid parts can be applied: see Good.
func ParseCard(data []byte, o Options) (Card, Parsed) {
	d := &decoder{Options: o, out: Parsed{Origins: map[string]Origin{}}, card: &Card{}}
	root, problems := document(o.File, data)
	d.out.Problems = problems
	if root != nil && len(problems) == 0 {
		d.card.root = root
		d.config(root)
		d.noPasswords(root)
	}
	d.out.Problems.sort()
	d.out.Warnings = nil // everybody can read a FAT partition
	return *d.card, d.out
}

// noPasswords refuses secrets that cannot be moved off the card.
func (d *decoder) noPasswords(root *yaml.Node) {
	if n := value(root, "datastore"); n != nil {
		d.problem(n, "datastore", "put it into "+DefaultPath+" on the device, and then: sudo rivulet reset", "the password of a database cannot be given on the boot partition, where everybody reads it")
	}
	if d.out.Config.Proxy.password() {
		d.problem(value(root, "proxy"), "proxy", "put proxy into "+DefaultPath+" on the device", "the password of a proxy cannot be given on the boot partition, where everybody reads it")
	}
	for _, r := range d.out.Config.Registries.Configs {
		if a := r.Auth; a != nil && (a.Password != "" || a.Auth != "" || a.IdentityToken != "") {
			d.problem(value(root, "registries"), "registries", "put registries into "+DefaultPath+" on the device", "passwords of registries cannot be given on the boot partition, where everybody reads them")
			return
		}
	}
}

// fields are the keys of a card beside those of a configuration; c is nil for others.
func (c *Card) fields(d *decoder) []field {
	if c == nil {
		return nil
	}
	return []field{
		{key: "wifi", to: func(n *yaml.Node) {
			d.group(n, "wifi", "wifi: {country: DE, networks: [{ssid: lab, password: a-long-word}]}",
				field{"country", &c.Country, form{check: checkCountry}}, field{key: "networks", to: func(n *yaml.Node) { c.networks(d, n) }})
		}},
		{key: "ssh", to: func(n *yaml.Node) {
			d.group(n, "ssh", "ssh: {keys: [\"ssh-ed25519 AAAA… me\"]}", field{key: "keys", to: func(n *yaml.Node) { c.keys(d, n) }})
		}},
	}
}

func (c *Card) networks(d *decoder, n *yaml.Node) {
	d.list(n, "wifi.networks", "[{ssid: lab, password: a-long-word}]", func(i int, n *yaml.Node) {
		path := fmt.Sprintf("wifi.networks[%d]", i)
		before := len(d.out.Problems)
		var w WiFi
		d.group(n, path, "{ssid: lab, password: a-long-word}", field{"ssid", &w.SSID, form{check: checkSSID}},
			field{"password", &w.Password, form{check: CheckWiFiPassword, example: `"a-long-word"`}}, field{"hidden", &w.Hidden, form{}})
		if len(d.out.Problems) > before {
			return
		}
		if w.SSID == "" {
			d.problem(n, path, "add it", "%s has no ssid", path)
			return
		}
		if slices.ContainsFunc(c.WiFi, func(o WiFi) bool { return o.SSID == w.SSID }) {
			d.problem(n, path, "remove one of them", "the network %q is here a second time", w.SSID)
			return
		}
		c.WiFi = append(c.WiFi, w)
	})
}

func (c *Card) keys(d *decoder, n *yaml.Node) {
	d.list(n, "ssh.keys", "[\"ssh-ed25519 AAAA… me\"]", func(i int, n *yaml.Node) {
		d.word(n, fmt.Sprintf("ssh.keys[%d]", i), form{check: checkSSHKey}, func(s string) { c.SSHKeys = append(c.SSHKeys, s) })
	})
}

// moved reports whether a secret was moved from here.
func (c *Card) moved(n *yaml.Node) bool { return c != nil && n.Value == Moved }

// checkPath accepts a plain name for a file beside the card's.
func (c *Card) checkPath(s string) error {
	if c != nil && cardFile.MatchString(s) {
		return nil
	}
	return checkPath(s)
}

var cardFile = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// OnCard reports whether an accepted path names a file beside the card's.
func OnCard(path string) bool { return cardFile.MatchString(path) }

func checkCountry(s string) error {
	if len(s) != 2 || strings.ToUpper(s) != s || strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return cure.Errorf("%.20q is not a country; write two capital letters in quotes, for example \"DE\"", s)
	}
	return nil
}

func checkSSID(s string) error {
	if len(s) > 32 {
		return cure.Errorf("the name of a network has at most 32 bytes, this one %d; look at its name again", len(s))
	}
	return nil
}

var wifiKey = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)

// CheckWiFiPassword refuses what cannot be a network's password.
func CheckWiFiPassword(s string) error {
	if wifiKey.MatchString(s) {
		return nil
	}
	if len(s) < 8 || len(s) > 63 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return cure.Errorf("it cannot be the password of a Wi-Fi network; it has 8 to 63 plain characters (for an open network leave it out)")
	}
	return nil
}

var sshKey = regexp.MustCompile(`^(sk-)?(ssh|ecdsa)-[a-z0-9@.-]+ [A-Za-z0-9+/]{32,}={0,3}( [^\x00-\x1f]*)?$`)

func checkSSHKey(s string) error {
	switch {
	case strings.Contains(s, "PRIVATE KEY"):
		return cure.Errorf("that is the private key, which never leaves its owner; write the public one, the line in the file that ends in .pub")
	case !sshKey.MatchString(s):
		return cure.Errorf("that is not a public ssh key; write the line in your id_ed25519.pub")
	}
	return nil
}

// top is the group of a problem; empty is the file as a whole.
func (p Problem) top() string {
	end := strings.IndexAny(p.Key, ".[")
	if end < 0 {
		return p.Key
	}
	return p.Key[:end]
}

// misspelt stands for an unknown key that may be about trust.
const misspelt = "trust?"

// bad are the groups with a mistake.
func (p Parsed) bad() map[string]bool {
	out := map[string]bool{}
	for _, m := range p.Problems {
		top := m.top()
		out[top] = true
		if top != "trust" && Nearest(top, []string{"trust"}) != "" {
			out[misspelt] = true
		}
	}
	return out
}

// Good returns the valid parts of the card as a configuration for DefaultPath; nil if there are none. Wi-Fi and SSH
// need no change. Trust is never guessed: if it is not certain, each new peer waits for an operator decision.
// secretFile will have the group's secret, kubeconfig returns the path of a file of the card.
func (c Card) Good(p Parsed, secretFile string, kubeconfig func(name string) string) []byte {
	bad := p.bad()
	out := &yaml.Node{Kind: yaml.MappingNode}
	if c.root != nil && c.root.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(c.root.Content); i += 2 {
			key := c.root.Content[i].Value
			if bad[key] || key == "wifi" || key == "ssh" || value(out, key) != nil || !slices.ContainsFunc(Keys, func(k string) bool { return k == key || strings.HasPrefix(k, key+".") }) {
				continue
			}
			out.Content = append(out.Content, c.root.Content[i], copied(c.root.Content[i+1]))
		}
	}
	if bad[misspelt] || bad["trust"] || c.root == nil && len(p.Problems) > 0 {
		set(out, "trust", &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{word("mode"), word(TrustAsk)}})
	}
	if t := value(out, "trust"); t != nil {
		if s := value(t, "secret"); s != nil {
			remove(t, "secret")
			set(t, "secretFile", word(secretFile))
		}
	}
	if list := value(out, "burst"); list != nil {
		for _, b := range list.Content {
			if k := value(b, "kubeconfig"); k != nil && OnCard(k.Value) {
				k.Value = kubeconfig(k.Value)
			}
		}
	}
	if len(out.Content) == 0 {
		return nil
	}
	block(out)
	return encode(out)
}

// Emptied returns the file without its secrets: everybody can read it, and the device reads it again. Parts with a
// mistake were not applied, and stay. It returns nil if there was nothing to remove.
func (c Card) Emptied(p Parsed) []byte {
	if c.root == nil {
		return nil
	}
	root, had := copied(c.root), false
	empty := func(n *yaml.Node) {
		if n != nil && n.Kind == yaml.ScalarNode && n.Value != Moved && !isNull(n) {
			n.Value, n.Tag, n.Style, n.LineComment, had = Moved, "!!str", 0, "# to change it, write the new one here", true
		}
	}
	if bad := p.bad(); !bad["trust"] {
		empty(value(value(root, "trust"), "secret"))
	}
	if list := value(value(root, "wifi"), "networks"); list != nil {
		for _, w := range list.Content {
			if ssid := value(w, "ssid"); ssid != nil && slices.ContainsFunc(c.WiFi, func(t WiFi) bool { return t.SSID == ssid.Value }) {
				empty(value(w, "password"))
			}
		}
	}
	if !had {
		return nil
	}
	block(root) // a comment in brackets would swallow what follows
	return encode(root)
}

// AddToCard returns the file of a card with further keys at its top level, each with one word; comments stay. A key that
// is there without a value gets one. The result is not checked: see ParseCard.
func AddToCard(data []byte, keys ...[2]string) []byte {
	root, _ := document(CardName, data)
	if root == nil { // empty, or comments only
		root = &yaml.Node{Kind: yaml.MappingNode, Column: 1}
	}
	out := bytes.TrimRight(data, " \t\r\n")
	if len(out) > 0 {
		out = append(out, '\n')
	}
	for _, k := range keys {
		out = fmt.Appendf(out, "%s%s: %s\n", strings.Repeat(" ", root.Column-1), k[0], k[1])
	}
	if again, problems := document(CardName, out); len(problems) == 0 && again.Kind == yaml.MappingNode && len(again.Content) == len(root.Content)+2*len(keys) && !slices.ContainsFunc(keys, func(k [2]string) bool { return index(root, k[0]) >= 0 }) {
		return out
	}
	// Written in brackets, with an end mark, or with a key that is there: it is written anew.
	root = copied(root)
	for _, k := range keys {
		v := word(k[1])
		if i := index(root, k[0]); i >= 0 {
			v.LineComment = root.Content[i+1].LineComment
			root.Content[i+1] = v
		} else {
			set(root, k[0], v)
		}
	}
	block(root)
	return encode(root)
}

// block writes groups and lists over several lines.
func block(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle
	for _, c := range n.Content {
		block(c)
	}
}

func encode(n *yaml.Node) []byte {
	var out strings.Builder
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if enc.Encode(n) != nil {
		return nil // it was parsed, so it can be written
	}
	return []byte(out.String())
}

func copied(n *yaml.Node) *yaml.Node {
	out := *n
	out.Content = nil
	for _, c := range n.Content {
		out.Content = append(out.Content, copied(c))
	}
	return &out
}

func word(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

// index is the position of a mapping's key, -1 if it is missing.
func index(n *yaml.Node, key string) int {
	if n != nil && n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				return i
			}
		}
	}
	return -1
}

// value is the value of a mapping's key, nil if it is missing.
func value(n *yaml.Node, key string) *yaml.Node {
	if i := index(n, key); i >= 0 {
		return n.Content[i+1]
	}
	return nil
}

func remove(n *yaml.Node, key string) {
	if i := index(n, key); i >= 0 {
		n.Content = slices.Delete(n.Content, i, i+2)
	}
}

func set(n *yaml.Node, key string, v *yaml.Node) {
	remove(n, key)
	n.Content = append(n.Content, word(key), v)
}
