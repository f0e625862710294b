package config

import (
	"cmp"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// samples are values other than the defaults, one for each key.
var samples = map[string]string{
	"name": "lab-9", "join": "AFQXGZDFON2DIZLFMRSXG5LNMVXHGIDJOMAQEAYEAUDAOCAJBIFQYDIOB4IACBGAAABAOHIS6CYJ52Q", "lan.interfaces": "[eth7]", "trust.mode": "ask", "trust.secret": "sixteen-letters-", "trust.secretFile": "/etc/rivulet/group.secret", "trust.broker": "[mfzwizltoq2gkzlemvzxk3lfnzzsa2lt@192.0.2.9:7442]",
	"peers": "[192.0.2.7]", "tunnel.relay": "false", "tunnel.streamPort": "443", "tunnel.peerCIDR": "10.0.0.0/8",
	"share.cpu": "37%", "share.memory": "38%", "share.maxPods": "0", "vclusters.cpu": "39%", "vclusters.memory": "40%", "vclusters.maxPods": "7", "vclusters.ports": "31000-31199",
	"reserve.cpu": "500m", "reserve.memory": "1Gi", "proxy.url": "http://me:sixteen-letters-@proxy.example:3128", "proxy.except": "[.example]", "registries.mirrors": "{docker.io: {endpoint: [\"https://mirror.example\"]}}",
	"registries.configs": "{docker.io: {share: true}}", "datastore": "postgres://rivulet:sixteen-letters-@db.example/lab?sslmode=verify-full", "peerImages": "false", "burst": "[{name: campus, kubeconfig: /etc/rivulet/campus.kubeconfig}]",
	"virtualNodes": "10 nearest", "services.import": "group", "services.namespaces": "[shop, lab]", "ingress": "true", "fleet": "true", "statusPage": "false", "console": "true", "consoleCode": "sha256:" + strings.Repeat("0a", 32), "metrics": "lan",
}

// leaves visits what can be set: all fields of a configuration that are no groups, by the address and name of each.
func leaves(v reflect.Value, path string, visit func(path string, at any)) {
	for i := range v.NumField() {
		name, inline, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		at := join(path, name)
		if inline == "inline" {
			at = path
		}
		if f := v.Field(i); f.Kind() == reflect.Struct {
			leaves(f, at, visit)
		} else {
			visit(at, f.Addr().Interface())
		}
	}
}

// Every field of Config has a row of Table and every row a field: each is read, found different, put over
// the file by its variable, shown with its origin, explained, and in the example and the reference.
func TestEveryKey(t *testing.T) {
	reference, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	var c Config
	fields := map[string]any{}
	leaves(reflect.ValueOf(&c).Elem(), "", func(path string, at any) { fields[path] = at })
	for path := range fields {
		if !slices.Contains(Keys, path) {
			t.Errorf("the field %s of Config has no row in Table", path)
		}
	}
	for _, k := range Table {
		if k.to(&c) != fields[k.Name] {
			t.Errorf("the row %s does not lead to the field of that name", k.Name)
		}
		sample, ok := samples[k.Name]
		if !ok {
			t.Errorf("%s has no sample here", k.Name)
			continue
		}
		top, leaf, grouped := strings.Cut(k.Name, ".")
		last := cmp.Or(leaf, top)
		text := k.Name + ": " + sample
		if grouped {
			text = top + ": {" + leaf + ": " + sample + "}"
		}
		before := ""
		if k.Name == "trust.secret" || k.Name == "trust.secretFile" {
			before, text = "trust: {mode: group}", strings.Replace(text, "{", "{mode: group, ", 1)
		}
		old := Parse([]byte(before), Options{}).Config // one without a secret is a mistake, and decoded all the same
		for how, p := range map[string]Parsed{
			"the file":     Parse([]byte(text), Options{File: "c.yaml"}),
			"the variable": Parse([]byte(before), Options{File: "c.yaml", Env: map[string]string{k.Name: sample}}),
		} {
			if len(p.Problems) > 0 || reflect.ValueOf(k.to(&p.Config)).Elem().IsZero() {
				t.Errorf("%s of %s is not read: %v", how, k.Name, p.Problems)
			}
			if got := Changed(old, p.Config); !slices.Equal(got, []string{top}) {
				t.Errorf("the change of %s by %s is told as %v", k.Name, how, got)
			}
			v := Loaded{Config: p.Config, Origins: p.Origins, From: FromFile}.View("node-1")
			if kind := v.Origins[k.Name].Kind; kind != "file" && kind != "environment" {
				t.Errorf("%s of %s has the origin %q", how, k.Name, kind)
			}
			if shown := v.YAML(false); !strings.Contains(shown, last+":") || strings.Contains(shown, samples["trust.secret"]) || strings.Contains(shown, samples["join"]) {
				t.Errorf("%s of %s is not shown, or a secret is:\n%s", how, k.Name, shown)
			}
		}
		if from := (Loaded{}).View("node-1").Origins[k.Name]; from.Kind != "default" {
			t.Errorf("%s is %q where nothing sets it", k.Name, from.Kind)
		}
		if got, err := Explain(k.Name); err != nil || len(got) != 1 || got[0].Type() == "" || got[0].Change == "" {
			t.Errorf("%s is explained as %+v, %v", k.Name, got, err)
		}
		if !strings.Contains(string(reference), "| `"+k.Name+"` | `"+Variable(k.Name)+"` |") {
			t.Errorf("docs/reference/configuration.md lacks %s", k.Name)
		}
		if !strings.Contains(Example, last+":") { // TestExample tries its values
			t.Errorf("the example lacks %s", k.Name)
		}
	}
	for group := range examples {
		if group != "" && !slices.ContainsFunc(Keys, func(k string) bool { return strings.HasPrefix(k, group+".") }) {
			t.Errorf("%s has an example, and is no group", group)
		}
	}
	for _, key := range Keys {
		if group, _, grouped := strings.Cut(key, "."); grouped && examples[group] == "" {
			t.Errorf("the group %s has no example", group)
		}
	}
	if _, err := Explain("share.cpus"); err == nil || !strings.Contains(err.Error(), "; did you mean share.cpu?") {
		t.Errorf("%v", err)
	}
	if all, err := Explain("share"); err != nil || len(all) != 3 {
		t.Errorf("%v %v", all, err)
	}
}
