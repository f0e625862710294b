package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// aHost is a device with 4 CPUs and 4 Gi.
var aHost = Host{CPUs: 4, MemoryBytes: 4 << 30}

func problems(text string) (out []string) {
	for _, p := range Parse([]byte(text), Options{File: "c.yaml", Host: aHost, Files: true}).Problems {
		out = append(out, p.Error())
	}
	return out
}

// Every mistake is told with its place and what to do, and all of them at once.
func TestMistakes(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []string // beginnings, in order
	}{
		{"nmae: x", []string{`c.yaml:1:1: unknown key "nmae"; did you mean name?`}},
		{"NAME: x", []string{`c.yaml:1:1: unknown key "NAME"; did you mean name?`}},
		{"share: {max_pods: 3}", []string{`c.yaml:1:9: unknown key "max_pods"; did you mean maxPods?`}},
		{"interfaces: [a]", []string{`c.yaml:1:1: unknown key "interfaces"; did you mean lan.interfaces? it goes in that group`}},
		{"secret: a", []string{`c.yaml:1:1: unknown key "secret"; did you mean trust.secret? it goes in that group`}},
		{"wifi: {ssid: x}", []string{`c.yaml:1:1: unknown key "wifi"; Wi-Fi is the operating system's to set up`}},
		{"node-name: x\nserver: x", []string{`c.yaml:1:1: unknown key "node-name"; write name`, `c.yaml:2:1: unknown key "server"; devices find each other`}},
		{"disable: [traefik]", []string{`c.yaml:1:1: unknown key "disable"; what k3s adds to Kubernetes is not here: see: rivulet docs coming-from-k3s`}},
		{"quux: 1", []string{`c.yaml:1:1: unknown key "quux"; known here: name, join, lan, trust, peers, tunnel, share, vclusters, reserve, proxy, registries, datastore, peerImages, burst`}},
		{"name: [a]", []string{"c.yaml:1:7: name is a list, not a text; "}},
		{"name: 5", []string{"c.yaml:1:7: name is a number, not a text; put it in quotes"}},
		{"name: yes\nreserve: {cpu: true}", []string{"c.yaml:2:16: reserve.cpu is true or false, not an amount; write for example 500m"}},
		{"name:", []string{"c.yaml:1:6: name is empty, not a text; write a text, or remove the line"}},
		{"name: ''", []string{"c.yaml:1:7: name is empty; "}},
		{"name:x", []string{"c.yaml:1:1: the file is a text, not keys with values; write a space after the colon"}},
		{"name: Bad_Name", []string{`c.yaml:1:7: name: "Bad_Name" cannot be a cluster's name; use at most 40`}},
		{"name: a\nname: b", []string{`c.yaml:2:1: "name" is here a second time, first in line 1; remove one of them`}},
		{"- a", []string{"c.yaml:1:1: the file is a list, not keys with values; "}},
		{"lan: eth0", []string{"c.yaml:1:6: lan is a text, not keys with values; write lan: {interfaces: [eth0]}"}},
		{"lan: {interfaces: eth0}", []string{`c.yaml:1:19: lan.interfaces is a text, not a list; write [eth0, "wlan*"]`}},
		{"lan: {interfaces: []}", []string{"c.yaml:1:19: lan.interfaces is empty; "}},
		{"lan:\n  interfaces:\n  - eth0\n  - a b\n  - cni0\n  - '['\n", []string{`c.yaml:4:5: lan.interfaces: "a b" is not the name`, "c.yaml:5:5: lan.interfaces: cni0 leads to containers", `c.yaml:6:5: lan.interfaces: "[" is not the name`}},
		{"trust: {broker: [broker.example]}", []string{`c.yaml:1:18: trust.broker: "broker.example" does not begin with the ID of a broker and @; write what rivulet broker has printed`}},
		{"trust: {mode: lan, broker: [mfzwizltoq2gkzlemvzxk3lfnzzsa2lt@a]}", []string{"c.yaml:1:28: a broker has no meaning with trust.mode lan; write mode: group, or remove the broker"}},
		{"trust: {mode: group, secret: sixteen-letters-, broker: [mfzwizltoq2gkzlemvzxk3lfnzzsa2lt@a, mfzwizltoq2gkzlemvzxk3lfnzzsa2lt@b]}", []string{"c.yaml:1:56: trust.broker has one broker twice; keep one of them"}},
		{"trust: {mode: group, secret: sixteen-letters-, broker: [mfzwizltoq2gkzlemvzxk3lfnzzsa2lt@a, mfzwizltoq2gkzlemvzxk3lfnzzsa2lt@b, mfzwizltoq2gkzlemvzxk3lfnzzsa2lt@c]}", []string{"c.yaml:1:56: trust.broker has 3, and 2 are used at most; remove some"}},
		{"peers: campus", []string{"c.yaml:1:8: peers is a text, not a list; write [192.0.2.7, campus.example:7442]"}},
		{"peers: [campus, 192.0.2]", []string{`c.yaml:1:17: peers: "192.0.2" is neither an address nor a name; write for example 192.0.2.7`}},
		{"trust: {mode: lna}", []string{`c.yaml:1:15: trust.mode: "lna" is not known; did you mean lan?`}},
		{"trust: {mode: everybody}", []string{`c.yaml:1:15: trust.mode: "everybody" is not known; write lan, group or ask`}},
		{"trust: {mode: group}", []string{"c.yaml:1:8: trust.mode is group, and there is no secret; add secret or secretFile"}},
		{"trust: {mode: group, secret: short}", []string{"c.yaml:1:30: trust.secret: the secret has 5 characters"}},
		{"trust: {mode: group, secret: sixteen-letters-, secretFile: /x}", []string{"c.yaml:1:60: trust has both secret and secretFile; remove one"}},
		{"trust: {mode: ask, secret: sixteen-letters-}", []string{"c.yaml:1:28: a secret has no meaning with trust.mode ask"}},
		{"trust: {mode: group, secretFile: x}", []string{`c.yaml:1:34: trust.secretFile: "x" is not a whole path; begin it with /`}},
		{"trust: {mode: group, secretFile: /none/x}", []string{"c.yaml:1:34: trust.secretFile: /none/x: there is no such file; put the group's secret there"}},
		{"share: {cpu: 50, memory: 120%, maxPods: '3'}", []string{`c.yaml:1:14: share.cpu: "50" lacks the %; write 50%`, `c.yaml:1:26: share.memory: "120%" is more than there is`, "c.yaml:1:41: share.maxPods is a text, not a number; write a whole number without quotes"}},
		{"share: {cpu: -5%, memory: 1.5%, maxPods: -1}", []string{`c.yaml:1:14: share.cpu: "-5%" is not a share`, `c.yaml:1:27: share.memory: "1.5%" is not a share`, "c.yaml:1:42: share.maxPods is -1; write a whole number from 0"}},
		{"tunnel: {peerCIDR: 10.0.0.0/24}", []string{`c.yaml:1:20: tunnel.peerCIDR: "10.0.0.0/24" cannot be the block of peers' prefixes: it is too small: one peer takes a /16 of it; write for example 240.0.0.0/5`}},
		{"tunnel: {peerCIDR: 8.0.0.0/8}", []string{`c.yaml:1:20: tunnel.peerCIDR: "8.0.0.0/8" cannot be the block of peers' prefixes: it is not in one of [10.0.0.0/8`}},
		{"reserve: {cpu: 4, memory: 1k}", []string{"c.yaml:1:16: reserve.cpu: 4 leaves nothing of the 4 CPUs here", "c.yaml:1:27: reserve.memory: 1k is 1000 bytes; write for example 512Mi"}},
		{"reserve: {cpu: lots, memory: 4Gi}", []string{`c.yaml:1:16: reserve.cpu: "lots" is not a quantity; write for example 500m`, "c.yaml:1:30: reserve.memory: 4Gi leaves nothing of the 4096 Mi here"}},
		{"burst:\n- name: a\n- {name: a, kubeconfig: x}\n- 5\n", []string{"c.yaml:2:3: burst[0] has no kubeconfig; add it", `c.yaml:3:25: burst[1].kubeconfig: "x" is not a whole path`, "c.yaml:4:3: burst[2] is a number"}},
		{"burst:\n- {name: a, kubeconfig: /none/x, namespace: A_b}\n", []string{`c.yaml:2:45: burst[0].namespace: "A_b" is not a namespace`}},
		{"burst: [{name: a, kubeconfig: /none/x}]", []string{"c.yaml:1:31: burst[0].kubeconfig: /none/x: there is no such file"}},
		{"registries:\n  mirrors:\n    https://x: {}\n    docker.io: {endpoint: [foo, 'https://u:p@h/']}\n  config: 5\n", []string{`c.yaml:3:5: "https://x" is not the name of a registry`, "c.yaml:4:28: registries.mirrors.docker.io.endpoint: this is not a URL", "c.yaml:4:33: registries.mirrors.docker.io.endpoint: a user or password in the URL", `c.yaml:5:3: unknown key "config"; did you mean configs?`}},
		{"registries: {mirrors: {x: {rewrite: {'(': a}}}, configs: {x: {tls: {cert_file: /none/a}}}}", []string{`c.yaml:1:38: "(" is not a regular expression`, "c.yaml:1:68: a certificate needs its key", "c.yaml:1:80: registries.configs.x.tls.cert_file: /none/a: there is no such file"}},

		// What is not YAML, or not text.
		{"name: a\nshare:\n\tcpu: 50%\n", []string{"c.yaml:3:1: a tab in the indentation; use spaces"}},
		{"name: a\nshare: cpu: 50%\n", []string{"c.yaml:2:1: a second key on one line, or a line too far to the right; "}},
		{"name: a\nshare:\n  cpu: 50%\n memory: 3%\n", []string{"c.yaml:4:2: this line does not fit the ones above; "}},
		{"name: x\n\n# remark\nlan: {interfaces: [eth0\nshare: {cpu: 5%}\n", []string{"c.yaml:4:1: a bracket that is not closed"}},
		{"lan: {interfaces: [\n  eth0,\n  eth1]}\nname: 'x\nshare: {cpu: 5%}\n", []string{"c.yaml:4:1: a quote that is not closed"}},
		{"name: x\n}\nlan: {}\n", []string{"c.yaml:2:1: this line does not fit"}},
		{"name: x\n  y: z\n", []string{"c.yaml:2:3: a second key on one line, or a line too far to the right"}},
		{"name: \"\\q\"", []string{"c.yaml:1:1: an unknown escape in a quoted text"}},
		{"name: @foo", []string{"c.yaml:1:1: a character that no value can begin with; put the value in quotes"}},
		{"name: a\n---\nname: b\n", []string{"c.yaml:2:1: a second document begins here"}},
		{"name: &a x\nlan: *a\n", []string{"c.yaml:1:7: anchors (&) and references (*) are not known", "c.yaml:2:6: anchors"}},
		{"datastore: sqlite:///sixteen-letters-", []string{"c.yaml:1:12: datastore: it is the address of neither PostgreSQL nor MySQL; write postgres://USER:PASSWORD@HOST:5432/DATABASE or mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE"}},
		{"name: !x y", []string{"c.yaml:1:7: tags (!) are not known here"}},
		{"? [a]\n: b\n", []string{"c.yaml:1:3: a key of the file is a list, not a word"}},
		{"\xff\xfen\x00", []string{"c.yaml:1:1: the file is UTF-16; save it as UTF-8"}},
		{"# Z\xfcrich\n", []string{"c.yaml:1:4: byte 0xfc is not UTF-8; save the file as UTF-8"}},
		{"name: a\x00", []string{"c.yaml:1:8: control character 0x00"}},
		{"# ü\nnme: ü\n", []string{"c.yaml:2:1: unknown key"}},
	} {
		got := problems(tc.text)
		ok := len(got) == len(tc.want)
		for i := range min(len(got), len(tc.want)) {
			ok = ok && strings.HasPrefix(got[i], tc.want[i])
		}
		if !ok {
			t.Errorf("%q\n got %s\nwant %s", tc.text, strings.Join(got, "\n     "), strings.Join(tc.want, "\n     "))
		}
	}
}

// What people write without thinking is right.
func TestForgiving(t *testing.T) {
	for _, text := range []string{
		"", "# nothing\n", "---\n", "\xef\xbb\xbfname: a\n", "name: a\r\nshare: {cpu: 5%}\r\n", "share:\n#  cpu: 5%\n", "lan:\n  interfaces:\n#  - eth0\n",
		"reserve: {cpu: 2, memory: 536870912}", "reserve: {cpu: 0.5, memory: 1.5Gi}", "share: {cpu: 0%, memory: 100%, maxPods: 0}", "name: no", "name: \"007\"",
		"lan: {interfaces: [eth0, 'wlan*', 'enp[0-9]s0', eth0.100, br-lan]}", "{\"name\": \"json\"}",
		"registries: {mirrors: {'*': {endpoint: ['http://10.0.0.1:5000/v2/x']}, '[::1]:5000': {}}}",
	} {
		if got := problems(text); len(got) > 0 {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// A secret is in no error, whatever else is wrong around it.
func TestErrorsHoldNoSecret(t *testing.T) {
	const canary = "canaryword"
	for _, text := range []string{
		"trust: {mode: group, secret: canaryword}", "trust: {mode: group, secret: [canaryword]}", "trust: {secret: *canaryword}", "trust: {secret: canaryword", "trust: {secret: @canaryword}",
		"trust: {mode: group, secret: {canaryword: 1}}", "trust:\n  secret:canaryword\n", "registries: {configs: {a: {auth: {password: [canaryword]}}}}", "registries: {configs: {a: {auth: canaryword}}}",
		"registries: {mirrors: {a: {endpoint: ['https://x:canaryword@h']}}}", "registries: {mirrors: {a: {endpoint: ['canaryword']}}}", "trust: {mode: group, secret: &canaryword 5}", "trust: {mode: group, secret: !canaryword x}",
		"trust: {secret: \"canaryword\\q\"}", "trust: {secret: \"canaryword}", "trust: canaryword",
	} {
		got := problems(text)
		if len(got) == 0 || strings.Contains(strings.Join(got, ""), canary) {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// drawConfig is any configuration without a mistake that names no file.
func drawConfig(t *rapid.T) Config {
	word := rapid.StringMatching(`[a-z][a-z0-9]{0,10}(-[a-z0-9]{1,9})?`)
	printable := rapid.StringMatching(`[ -~äöü€]{16,40}`)
	some := func(g *rapid.Generator[string], label string) string {
		if !rapid.Bool().Draw(t, "has "+label) {
			return ""
		}
		return g.Draw(t, label)
	}
	percent := rapid.Map(rapid.IntRange(0, 100), func(v int) string { return fmt.Sprint(v) + "%" })
	var c Config
	if c.Name = some(word, "name"); c.Name == "localhost" {
		c.Name = ""
	}
	c.LAN.Interfaces = rapid.SliceOfN(rapid.StringMatching(`(eth|wlan|en)[0-9*?]{1,3}`), 0, 3).Draw(t, "interfaces")
	if len(c.LAN.Interfaces) == 0 {
		c.LAN.Interfaces = nil
	}
	c.Trust.Mode = some(rapid.SampledFrom([]string{TrustLAN, TrustAsk, TrustGroup}), "mode")
	if c.Trust.Mode == TrustGroup {
		c.Trust.Secret = Secret(printable.Draw(t, "secret"))
	}
	if rapid.Bool().Draw(t, "has relay") {
		v := rapid.Bool().Draw(t, "relay")
		c.Tunnel.Relay = &v
	}
	if rapid.Bool().Draw(t, "has stream port") {
		c.Tunnel.StreamPort = rapid.Int64Range(1, 65535).Draw(t, "stream port")
	}
	c.Tunnel.PeerCIDR = some(rapid.SampledFrom([]string{"240.0.0.0/5", "10.128.0.0/9", "192.168.0.0/16"}), "block")
	for _, s := range []*Share{&c.Share, &c.VClusters.Share} {
		s.CPU, s.Memory = Percent(some(percent, "cpu")), Percent(some(percent, "memory"))
		if rapid.Bool().Draw(t, "has pods") {
			v := rapid.Int64Range(0, 1000).Draw(t, "pods")
			s.MaxPods = &v
		}
	}
	c.VClusters.Ports = some(rapid.SampledFrom([]string{"30000-32767", "31000-31199", "31000-31000"}), "ports")
	c.Reserve.CPU = some(rapid.SampledFrom([]string{"500m", "1", "0.25", "3"}), "reserve cpu")
	c.Reserve.Memory = some(rapid.SampledFrom([]string{"256Mi", "1Gi", "1073741824", "0"}), "reserve memory")
	if rapid.Bool().Draw(t, "has registries") {
		c.Registries.Mirrors = map[string]Mirror{word.Draw(t, "registry"): {Endpoint: []string{"https://" + word.Draw(t, "host") + ":5000"}, Rewrite: map[string]string{"^(.*)$": "a/$1"}}}
		c.Registries.Configs = map[string]Registry{word.Draw(t, "endpoint"): {Auth: &Auth{Username: printable.Draw(t, "user"), Password: Secret(printable.Draw(t, "password"))}, TLS: &TLS{InsecureSkipVerify: true}}}
	}
	return c
}

// revealed is the configuration as a user would write it.
func revealed(c Config) []byte {
	type plainTrust struct {
		Mode   string `yaml:"mode,omitempty"`
		Secret string `yaml:"secret,omitempty"`
	}
	doc := map[string]any{"lan": c.LAN, "tunnel": c.Tunnel, "trust": plainTrust{c.Trust.Mode, c.Trust.Secret.Reveal()}, "share": c.Share, "vclusters": c.VClusters, "reserve": c.Reserve, "burst": c.Burst}
	if c.Name != "" {
		doc["name"] = c.Name
	}
	if text := c.Registries.K3s(); text != "" {
		var r map[string]any
		if err := yaml.Unmarshal([]byte(text), &r); err != nil {
			panic(err)
		}
		doc["registries"] = r
	}
	out, err := yaml.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return out
}

// What is written is read back, key by key; what is shown can be written again, and
// holds no secret.
func TestReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		text := revealed(c)
		p := Parse(text, Options{File: "c.yaml", Host: aHost, Files: true})
		if len(p.Problems) > 0 {
			t.Fatalf("%s\n%v", text, p.Problems)
		}
		if !reflect.DeepEqual(p.Config, c) {
			t.Fatalf("%s\n got %+v\nwant %+v", text, p.Config, c)
		}
		v := Loaded{Config: p.Config, Origins: p.Origins, File: "c.yaml", From: FromFile}.View("node-1")
		for _, origins := range []bool{false, true} {
			shown := v.YAML(origins)
			again := Parse([]byte(shown), Options{File: "shown", Host: aHost})
			again.Problems = slices.DeleteFunc(again.Problems, func(p Problem) bool { return p.Key == "trust.secret" }) // "(redacted)" is too short for one
			if len(again.Problems) > 0 {
				t.Fatalf("%s\n%v", shown, again.Problems)
			}
			for _, s := range []Secret{c.Trust.Secret, firstPassword(c)} {
				if s != "" && strings.Contains(shown, strings.TrimSpace(s.Reveal())) {
					t.Fatalf("%q in\n%s", s.Reveal(), shown)
				}
			}
		}
	})
}

func firstPassword(c Config) Secret {
	for _, r := range c.Registries.Configs {
		return r.Auth.Password
	}
	return ""
}

// However a secret is printed or encoded, it does not show.
func TestSecretsDoNotShow(t *testing.T) {
	c := Config{Trust: Trust{Secret: "canary"}, Registries: Registries{Configs: map[string]Registry{"x": {Auth: &Auth{Password: "canary", Auth: "canary", IdentityToken: "canary"}}}}}
	l := Loaded{Config: c, From: FromFile}
	raw, err := json.Marshal(l.View("n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(raw), fmt.Sprintf("%v %+v %#v %s %q", c.Trust, c.Trust, c.Trust, c.Trust, c.Trust), l.View("n").YAML(true), fmt.Sprintf("%+v", l.View("n").Values.Registries.Configs["x"].Auth)} {
		if strings.Contains(text, "canary") {
			t.Errorf("a secret in %s", text)
		}
	}
	if c.Trust.Secret.Reveal() != "canary" || !strings.Contains(c.Registries.K3s(), "password: canary") {
		t.Error("the secret is lost where it is needed")
	}
}

func TestChanged(t *testing.T) {
	two := int64(2)
	base := Config{Name: "a"}
	for key, other := range map[string]Config{
		"name": {Name: "b"}, "lan": {Name: "a", LAN: LAN{Interfaces: []string{"eth0"}}}, "trust": {Name: "a", Trust: Trust{Secret: "x"}},
		"tunnel": {Name: "a", Tunnel: Tunnel{StreamPort: 443}},
		"share":  {Name: "a", Share: Share{MaxPods: &two}}, "reserve": {Name: "a", Reserve: Reserve{CPU: "1"}},
		"registries": {Name: "a", Registries: Registries{Configs: map[string]Registry{"x": {Auth: &Auth{Password: "p"}}}}}, "burst": {Name: "a", Burst: []Burst{{Name: "x"}}},
		"peers": {Name: "a", Peers: []string{"192.0.2.7"}},
	} {
		if got := Changed(base, other); !reflect.DeepEqual(got, []string{key}) {
			t.Errorf("%s: %v", key, got)
		}
	}
	if got := Changed(base, base); got != nil {
		t.Errorf("nothing: %v", got)
	}
}

// The example changes nothing as it is, and has every key when it is switched on.
func TestExample(t *testing.T) {
	p := Parse([]byte(Example), Options{File: "example"})
	if len(p.Problems) > 0 || !reflect.DeepEqual(p.Config, Config{}) {
		t.Errorf("%v %+v", p.Problems, p.Config)
	}
	var on []string
	for line := range strings.Lines(Example) {
		if s, ok := strings.CutPrefix(line, "#"); ok && s != "\n" && (s[0] != ' ' || strings.HasPrefix(s, "  ")) {
			line = s
		}
		on = append(on, line)
	}
	p = Parse([]byte(strings.Join(on, "")), Options{File: "example", Host: aHost})
	if len(p.Problems) > 0 {
		t.Error(p.Problems)
	}
	for _, key := range Keys {
		if _, ok := p.Origins[key]; !ok && key != "trust.secret" && key != "registries.mirrors" && key != "registries.configs" {
			t.Errorf("the example lacks %s", key)
		}
		if leaf := key[strings.LastIndex(key, ".")+1:]; !strings.Contains(Example, leaf+":") {
			t.Errorf("the example does not speak of %s", key)
		}
	}
}

// docs/design/configuration.md: every block of YAML is right, and the one with mistakes gives the words that stand below it.
func TestDocs(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "design", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(raw), "```")
	right, wrong := 0, 0
	for i := 1; i < len(blocks); i += 2 {
		switch kind, text, _ := strings.Cut(blocks[i], "\n"); kind {
		case "yaml":
			right++
			if p := Parse([]byte(text), Options{File: "docs", Host: aHost}); len(p.Problems) > 0 {
				t.Errorf("%s\n%v", text, p.Problems)
			}
		case "yaml-with-mistakes":
			wrong++
			_, said, _ := strings.Cut(blocks[i+2], "\n")
			var got strings.Builder
			for _, p := range Parse([]byte(text), Options{File: "/etc/rivulet/config.yaml", Host: aHost}).Problems {
				fmt.Fprintln(&got, p)
			}
			if got.String() != said {
				t.Errorf("the docs say\n%sand check says\n%s", said, &got)
			}
		}
	}
	if right == 0 || wrong == 0 {
		t.Errorf("%d blocks of yaml, %d with mistakes: nothing was tested", right, wrong)
	}
}

// Whatever it is given, the parser ends, and each problem has a place and a cure on one line.
func FuzzParse(f *testing.F) {
	f.Add([]byte(Example))
	for _, text := range []string{"name: a\nshare: {cpu: 50%}", "lan: {interfaces: [eth0", "trust:\n\tmode: x", "a: &a [*a]", "---\n---\n", "burst: [{name: a}]", "registries: {mirrors: {x: {endpoint: [y]}}}", "? a\n", "\"", "'", "|", ">-\n a", "<<: {a: b}", "%YAML 1.1\n---\n", "!!binary x: y"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			t.Skip("longer than any idea needs")
		}
		p := Parse(data, Options{File: "f", Host: aHost})
		lines := 1 // as YAML counts them
		for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} {
			lines += strings.Count(string(data), end)
		}
		for _, pr := range append(p.Problems, p.Warnings...) {
			if pr.Line < 1 || pr.Line > lines+1 || pr.Column < 1 || pr.Text == "" || pr.Cure == "" || strings.ContainsAny(pr.Error(), "\n\r\x00") {
				t.Errorf("%q: %+v", data, pr)
			}
		}
		if len(p.Problems) == 0 { // what is accepted can be written down and is the same
			again := Parse(revealed(p.Config), Options{File: "f", Host: aHost})
			if len(again.Problems) > 0 || len(Changed(p.Config, again.Config)) > 0 {
				t.Errorf("%q\n%s\n%v", data, revealed(p.Config), again.Problems)
			}
		}
	})
}
