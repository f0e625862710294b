package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"rivulet/fabric/cure"
)

// config reads the whole file.
func (d *decoder) config(n *yaml.Node) {
	c := &d.out.Config
	d.group(n, "", examples[""], append(d.fields(c), d.card.fields(d)...)...)
	if d.Mode&0o077 != 0 && c.hasSecret() {
		d.warn(n, "", "chmod 600 "+d.File, "the file holds a secret and others than its owner may read it (mode %04o)", d.Mode)
	} else if d.Mode&0o022 != 0 {
		d.warn(n, "", "chmod go-w "+d.File, "others than its owner may write the file (mode %04o)", d.Mode)
	}
}

// fields are the keys of c: those at the top, and the groups with theirs.
func (d *decoder) fields(c *Config) (out []field) {
	groups := map[string][]field{}
	for _, k := range Table {
		group, _, grouped := strings.Cut(k.Name, ".")
		if !grouped {
			out = append(out, k.field(c))
			continue
		}
		if groups[group] == nil {
			out = append(out, field{key: group, to: func(n *yaml.Node) {
				d.group(n, group, examples[group], groups[group]...)
				switch group {
				case "lan":
					d.interfaces(n)
				case "trust":
					d.trust(n, &c.Trust)
				}
			}})
		}
		groups[group] = append(groups[group], k.field(c))
	}
	return out
}

// interfaces refuses a list without any.
func (d *decoder) interfaces(lan *yaml.Node) {
	if n := value(lan, "interfaces"); n != nil && n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		d.problem(n, "lan.interfaces", "name one, or remove the line for all of them", "lan.interfaces is empty")
	}
}

// maxBrokers bounds trust.broker.
const maxBrokers = 2

// trust checks the keys of the group together, and reads the file of the secret.
func (d *decoder) trust(n *yaml.Node, to *Trust) {
	secret, file := value(n, "secret"), value(n, "secretFile")
	switch {
	case secret != nil && file != nil:
		d.problem(file, "trust.secretFile", "remove one of them", "trust has both secret and secretFile")
	case to.Mode == TrustGroup && secret == nil && file == nil:
		d.problem(n, "trust", "add secret or secretFile, the same on all devices of the group", "trust.mode is group, and there is no secret")
	case to.Mode != TrustGroup && to.Mode != "" && secret != nil:
		d.problem(secret, "trust.secret", "write mode: group, or remove the secret", "a secret has no meaning with trust.mode %s", to.Mode)
	case file != nil && to.SecretFile != "":
		d.secretFile(file, to)
	}
	switch brokers := value(n, "broker"); {
	case brokers != nil && to.Mode == "":
		d.warn(brokers, "trust.broker", "write mode: group and a secret", "trust.broker is used in a group only")
	case brokers != nil && to.Mode != TrustGroup:
		d.problem(brokers, "trust.broker", "write mode: group, or remove the broker", "a broker has no meaning with trust.mode %s", to.Mode)
	case len(to.Broker) == 2 && sameBroker(to.Broker[0], to.Broker[1]):
		d.problem(brokers, "trust.broker", "keep one of them", "trust.broker has one broker twice")
	case len(to.Broker) > maxBrokers:
		d.problem(brokers, "trust.broker", "remove some", "trust.broker has %d, and %d are used at most", len(to.Broker), maxBrokers)
	}
}

// secretFile reads the secret, if files are checked or the reader needs it.
func (d *decoder) secretFile(n *yaml.Node, to *Trust) {
	data, mode, err := read(to.SecretFile)
	if err == nil {
		s := strings.TrimSpace(string(data))
		if err = checkSecret(s); err == nil {
			to.Secret = Secret(s)
		}
	}
	if err != nil && d.Files {
		d.problem(n, "trust.secretFile", "put the group's secret there: one line, the same on all devices", "trust.secretFile: %s: %s", to.SecretFile, fileError(err))
	}
	if err == nil && mode&0o077 != 0 {
		d.warn(n, "trust.secretFile", "chmod 600 "+to.SecretFile, "others than its owner may read or write %s (mode %04o)", to.SecretFile, mode)
	}
}

func (d *decoder) burst(n *yaml.Node, path string, to *[]Burst) {
	names := map[string]int{}
	d.list(n, path, "burst: [{name: campus, kubeconfig: /etc/rivulet/campus.kubeconfig}]", func(i int, n *yaml.Node) {
		path := fmt.Sprintf("%s[%d]", path, i)
		if n.Kind != yaml.MappingNode {
			d.problem(n, path, "write {name: campus, kubeconfig: /etc/rivulet/campus.kubeconfig}", "%s is %s, not keys with values", path, kind(n))
			return
		}
		before := len(d.out.Problems)
		var b Burst
		l := &b.Limits
		d.group(n, path, "name: campus",
			field{"name", &b.Name, form{check: CheckName}},
			field{"kubeconfig", &b.Kubeconfig, form{check: d.card.checkPath}},
			field{"namespace", &b.Namespace, form{check: checkNamespace}},
			field{"context", &b.Context, form{}},
			field{key: "limits", to: func(n *yaml.Node) {
				d.group(n, path+".limits", "limits: {cpu: 8, memory: 16Gi, pods: 40}",
					field{"cpu", &l.CPU, quantityLike("8")}, field{"memory", &l.Memory, quantityLike("16Gi")}, field{"pods", &l.Pods, quantityLike("40")})
			}},
			field{"network", &b.Network, oneOf("none", "auto", "stream", "udp")},
			field{"image", &b.Image, form{}},
			field{"order", &b.Order, oneOf("last", "equal")},
			field{"price", &b.Price, oneOf("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")},
			field{"podSecurity", &b.PodSecurity, oneOf("auto", "restricted", "as-is")},
			field{"arch", &b.Arch, oneOf("amd64", "arm64", "arm")},
			field{"insecureSkipTLSVerify", &b.Insecure, form{}},
		)
		name, file := value(n, "name"), value(n, "kubeconfig")
		if name == nil {
			d.problem(n, path, "add it", "%s has no name", path)
		}
		if file == nil {
			d.problem(n, path, "add it", "%s has no kubeconfig", path)
		}
		if first, ok := names[b.Name]; ok && b.Name != "" {
			d.problem(name, path+".name", "choose another", "a burst target of the name %s is in line %d already", b.Name, first)
		}
		if len(d.out.Problems) > before {
			return
		}
		names[b.Name] = name.Line
		if d.Files {
			if err := checkKubeconfig(b.Kubeconfig); err != nil {
				d.problem(file, path+".kubeconfig", "put the kubeconfig of that cluster there", "%s.kubeconfig: %s: %s", path, b.Kubeconfig, fileError(err))
			}
		}
		*to = append(*to, b)
	})
}

// quantityLike is a Kubernetes quantity.
func quantityLike(example string) form {
	return form{example: example, check: func(s string) error { _, err := quantity(s, example); return err }}
}

// oneOf is one of the words.
func oneOf(words ...string) form {
	return form{check: func(s string) error {
		if slices.Contains(words, s) {
			return nil
		}
		return cure.Errorf("%.30q is not known; write one of %s", s, strings.Join(words, ", "))
	}}
}

// reject reports an error with a cure.
func (d *decoder) reject(n *yaml.Node, path string, err error) {
	text, cure := cure.Split(err)
	d.problem(n, path, cure, "%s: %s", path, text)
}

// hasSecret reports whether the file itself contains a secret.
func (c Config) hasSecret() bool {
	if c.Join != "" || c.Trust.Secret != "" && c.Trust.SecretFile == "" || c.Datastore != "" || c.Proxy.password() {
		return true
	}
	for _, r := range c.Registries.Configs {
		if a := r.Auth; a != nil && (a.Password != "" || a.Auth != "" || a.IdentityToken != "") {
			return true
		}
	}
	return false
}

// fileError describes an error of a named file, without its name.
func fileError(err error) string {
	var p *Problem
	switch {
	case os.IsNotExist(err):
		return "there is no such file"
	case errors.As(err, &p):
		return p.Text
	}
	text, _ := cure.Split(err)
	return plain(text)
}

func checkPath(s string) error {
	if !filepath.IsAbs(s) {
		return cure.Errorf("%.60q is not a whole path; begin it with /", s)
	}
	return nil
}
