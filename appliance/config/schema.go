package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// config reads the whole file: the one place that knows which keys there are.
func (d *decoder) config(n *yaml.Node) {
	c := &d.out.Config
	fields := []field{
		{"name", func(n *yaml.Node) { d.checked(n, "name", &c.Name, CheckName) }},
		{"lan", func(n *yaml.Node) { d.lan(n, &c.LAN) }},
		{"trust", func(n *yaml.Node) { d.trust(n, &c.Trust) }},
		{"peers", func(n *yaml.Node) { d.peers(n, &c.Peers) }},
		{"tunnel", func(n *yaml.Node) { d.tunnel(n, &c.Tunnel) }},
		{"share", func(n *yaml.Node) { d.share(n, "share", &c.Share) }},
		{"vclusters", func(n *yaml.Node) {
			d.share(n, "vclusters", &c.VClusters.Share, field{"ports", func(n *yaml.Node) { d.checked(n, "vclusters.ports", &c.VClusters.Ports, checkPorts) }})
		}},
		{"reserve", func(n *yaml.Node) { d.reserve(n, &c.Reserve) }},
		{"registries", func(n *yaml.Node) { d.registries(n, &c.Registries) }},
		{"peerImages", func(n *yaml.Node) { d.truth(n, "peerImages", func(v bool) { c.PeerImages = &v }) }},
		{"burst", func(n *yaml.Node) { d.burst(n, &c.Burst) }},
		{"ingress", func(n *yaml.Node) { d.truth(n, "ingress", func(v bool) { c.Ingress = v }) }},
		{"statusPage", func(n *yaml.Node) { d.truth(n, "statusPage", func(v bool) { c.StatusPage = &v }) }},
	}
	d.group(n, "", "for example name: lab-1", append(fields, d.card.fields(d)...)...)
	if d.Mode&0o077 != 0 && c.hasSecret() {
		d.warn(n, "", "chmod 600 "+d.File, "the file holds a secret and others than its owner may read it (mode %04o)", d.Mode)
	} else if d.Mode&0o022 != 0 {
		d.warn(n, "", "chmod go-w "+d.File, "others than its owner may write the file (mode %04o)", d.Mode)
	}
}

func (d *decoder) lan(n *yaml.Node, to *LAN) {
	d.group(n, "lan", "lan: {interfaces: [eth0]}",
		field{"interfaces", func(n *yaml.Node) {
			d.list(n, "lan.interfaces", "[eth0, \"wlan*\"]", func(i int, n *yaml.Node) {
				d.text(n, fmt.Sprintf("lan.interfaces[%d]", i), func(s string) {
					if err := checkInterface(s); err != nil {
						d.reject(n, "lan.interfaces", err)
						return
					}
					to.Interfaces = append(to.Interfaces, s)
				})
			})
			if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
				d.problem(n, "lan.interfaces", "name one, or remove the line for all of them", "lan.interfaces is empty")
			}
		}},
	)
}

func (d *decoder) peers(n *yaml.Node, to *[]string) {
	d.list(n, "peers", "[192.0.2.7, campus.example:7442]", func(i int, n *yaml.Node) {
		d.text(n, fmt.Sprintf("peers[%d]", i), func(s string) {
			if err := checkPeer(s); err != nil {
				d.reject(n, "peers", err)
				return
			}
			*to = append(*to, s)
		})
	})
}

func (d *decoder) trust(n *yaml.Node, to *Trust) {
	var secret, file *yaml.Node
	d.group(n, "trust", "trust: {mode: lan}",
		field{"mode", func(n *yaml.Node) { d.checked(n, "trust.mode", &to.Mode, checkMode) }},
		field{"secret", func(n *yaml.Node) {
			if secret = n; d.card.moved(n) {
				to.Secret = Moved
				return
			}
			d.text(n, "trust.secret", func(s string) {
				if err := checkSecret(s); err != nil {
					d.reject(n, "trust.secret", err)
				}
				to.Secret = Secret(s)
			})
		}},
		field{"secretFile", func(n *yaml.Node) {
			file = n
			d.checked(n, "trust.secretFile", &to.SecretFile, checkPath)
		}},
	)
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
}

// secretFile reads the secret, if files are looked into or the reader can have it.
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

func (d *decoder) share(n *yaml.Node, of string, to *Share, more ...field) {
	percent := func(key string, to *Percent) field {
		return field{key, func(n *yaml.Node) {
			d.amount(n, of+"."+key, "50%", func(s string) {
				if err := checkPercent(s); err != nil {
					d.reject(n, of+"."+key, err)
					return
				}
				*to = Percent(s)
			})
		}}
	}
	d.group(n, of, of+": {cpu: 50%, memory: 50%}", append(more, percent("cpu", &to.CPU), percent("memory", &to.Memory),
		field{"maxPods", func(n *yaml.Node) {
			d.number(n, of+".maxPods", 0, 100_000, func(v int64) { to.MaxPods = &v })
		}},
	)...)
}

func (d *decoder) tunnel(n *yaml.Node, to *Tunnel) {
	d.group(n, "tunnel", "tunnel: {relay: false}",
		field{"relay", func(n *yaml.Node) { d.truth(n, "tunnel.relay", func(v bool) { to.Relay = &v }) }},
		field{"streamPort", func(n *yaml.Node) {
			d.number(n, "tunnel.streamPort", 1, 65535, func(v int64) { to.StreamPort = v })
		}},
		field{"peerCIDR", func(n *yaml.Node) { d.checked(n, "tunnel.peerCIDR", &to.PeerCIDR, checkBlock) }},
	)
}

func (d *decoder) reserve(n *yaml.Node, to *Reserve) {
	quantity := func(key, example string, to *string, check func(string, Host) error) field {
		return field{key, func(n *yaml.Node) {
			d.amount(n, "reserve."+key, example, func(s string) {
				if err := check(s, d.Host); err != nil {
					d.reject(n, "reserve."+key, err)
					return
				}
				*to = s
			})
		}}
	}
	d.group(n, "reserve", "reserve: {cpu: 500m, memory: 1Gi}",
		quantity("cpu", "500m", &to.CPU, checkCPU), quantity("memory", "1Gi", &to.Memory, checkMemory))
}

func (d *decoder) burst(n *yaml.Node, to *[]Burst) {
	names := map[string]int{}
	d.list(n, "burst", "burst: [{name: campus, kubeconfig: /etc/rivulet/campus.kubeconfig}]", func(i int, n *yaml.Node) {
		path := fmt.Sprintf("burst[%d]", i)
		if n.Kind != yaml.MappingNode {
			d.problem(n, path, "write {name: campus, kubeconfig: /etc/rivulet/campus.kubeconfig}", "%s is %s, not keys with values", path, kind(n))
			return
		}
		before := len(d.out.Problems)
		var b Burst
		var nameAt, fileAt *yaml.Node
		d.group(n, path, "name: campus",
			field{"name", func(n *yaml.Node) { nameAt = n; d.checked(n, path+".name", &b.Name, CheckName) }},
			field{"kubeconfig", func(n *yaml.Node) { fileAt = n; d.checked(n, path+".kubeconfig", &b.Kubeconfig, d.card.checkPath) }},
			field{"namespace", func(n *yaml.Node) { d.checked(n, path+".namespace", &b.Namespace, checkNamespace) }},
			field{"context", func(n *yaml.Node) { d.text(n, path+".context", func(s string) { b.Context = s }) }},
			field{"limits", func(n *yaml.Node) { d.burstLimits(n, path+".limits", &b.Limits) }},
			field{"network", d.oneOf(path+".network", &b.Network, "none", "auto", "stream", "udp")},
			field{"image", func(n *yaml.Node) { d.text(n, path+".image", func(s string) { b.Image = s }) }},
			field{"order", d.oneOf(path+".order", &b.Order, "last", "equal")},
			field{"podSecurity", d.oneOf(path+".podSecurity", &b.PodSecurity, "auto", "restricted", "as-is")},
			field{"arch", d.oneOf(path+".arch", &b.Arch, "amd64", "arm64", "arm")},
		)
		for _, must := range []struct {
			at   *yaml.Node
			name string
		}{{nameAt, "name"}, {fileAt, "kubeconfig"}} {
			if must.at == nil {
				d.problem(n, path, "add it", "%s has no %s", path, must.name)
			}
		}
		if first, ok := names[b.Name]; ok && b.Name != "" {
			d.problem(nameAt, path+".name", "choose another", "a burst target of the name %s is in line %d already", b.Name, first)
		}
		if len(d.out.Problems) > before {
			return
		}
		names[b.Name] = nameAt.Line
		if d.Files {
			if err := checkKubeconfig(b.Kubeconfig); err != nil {
				d.problem(fileAt, path+".kubeconfig", "put the kubeconfig of that cluster there", "%s.kubeconfig: %s: %s", path, b.Kubeconfig, fileError(err))
			}
		}
		*to = append(*to, b)
	})
}

func (d *decoder) burstLimits(n *yaml.Node, path string, to *BurstLimits) {
	limit := func(key, example string, to *string) field {
		return field{key, func(n *yaml.Node) {
			d.amount(n, path+"."+key, example, func(s string) {
				if _, err := quantity(s, example); err != nil {
					d.reject(n, path+"."+key, err)
					return
				}
				*to = s
			})
		}}
	}
	d.group(n, path, "limits: {cpu: 8, memory: 16Gi, pods: 40}", limit("cpu", "8", &to.CPU), limit("memory", "16Gi", &to.Memory), limit("pods", "40", &to.Pods))
}

// oneOf reads a word that has to be one of those.
func (d *decoder) oneOf(path string, to *string, words ...string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		d.checked(n, path, to, func(s string) error {
			if slices.Contains(words, s) {
				return nil
			}
			return fmt.Errorf("%.30q is not known; write one of %s", s, strings.Join(words, ", "))
		})
	}
}

// checked reads a text that check has to pass.
func (d *decoder) checked(n *yaml.Node, path string, to *string, check func(string) error) {
	d.text(n, path, func(s string) {
		if err := check(s); err != nil {
			d.reject(n, path, err)
			return
		}
		*to = s
	})
}

// reject reports an error that ends in "; cure".
func (d *decoder) reject(n *yaml.Node, path string, err error) {
	text, cure, _ := strings.Cut(err.Error(), "; ")
	d.problem(n, path, cure, "%s: %s", path, text)
}

// hasSecret reports whether the file itself holds something that others must not read.
func (c Config) hasSecret() bool {
	if c.Trust.Secret != "" && c.Trust.SecretFile == "" {
		return true
	}
	for _, r := range c.Registries.Configs {
		if a := r.Auth; a != nil && (a.Password != "" || a.Auth != "" || a.IdentityToken != "") {
			return true
		}
	}
	return false
}

// fileError says what is wrong with a file that is named, without naming it again.
func fileError(err error) string {
	var p *Problem
	switch {
	case os.IsNotExist(err):
		return "there is no such file"
	case asProblem(err, &p):
		return p.Text
	}
	text, _, _ := strings.Cut(plain(err.Error()), "; ")
	return text
}

func checkPath(s string) error {
	if !filepath.IsAbs(s) {
		return fmt.Errorf("%.60q is not a whole path; begin it with /", s)
	}
	return nil
}
