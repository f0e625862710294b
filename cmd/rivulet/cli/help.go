package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// groups are the groups of verbs in rivulet --help.
var groups = []struct {
	title string
	verbs []string
}{
	{"Run a device:", []string{"run", "status", "doctor", "config", "install", "uninstall", "end-pods"}},
	{"Devices of one cluster:", []string{"nodes", "token", "join", "leave"}},
	{"Clusters around:", []string{"peers", "peer", "approve", "deny", "invite", "unpeer", "broker", "burst"}},
	{"Pods at home and away:", []string{"pods", "why", "trace", "offload", "unoffload", "cordon", "uncordon", "drain", "move", "volumes", "tenants", "services", "open", "close", "image"}},
	{"Clusters inside this one:", []string{"vcluster", "course"}},
	{"Look after it:", []string{"backup", "restore", "upgrade", "reset", "support", "metrics", "rotate-key", "licenses", "docs"}},
	{"Device images:", []string{"flash", "firstboot", "console"}},
	{"kubectl and other tools:", []string{"kubeconfig", "kubectl", "ctr", "crictl"}},
}

// examples are by the command's path. Every verb has one.
var examples = map[string]string{
	"run":                 "sudo rivulet run\nsudo rivulet run --name lab-1",
	"status":              "sudo rivulet status\nsudo rivulet status --watch\nsudo rivulet status --fleet\nsudo rivulet status -o json",
	"doctor":              "sudo rivulet doctor\nsudo rivulet doctor --fix\nsudo rivulet doctor --only clock,memory",
	"doctor peer":         "sudo rivulet doctor peer lab-2",
	"config check":        "rivulet config check\nrivulet config check rivulet.yaml",
	"config show":         "sudo rivulet config show --origin",
	"config reload":       "sudo rivulet config reload",
	"config example":      "rivulet config example > config.yaml",
	"config explain":      "rivulet config explain share.cpu\nrivulet config explain share",
	"install":             "sudo ./rivulet install",
	"uninstall":           "sudo rivulet uninstall",
	"peers":               "sudo rivulet peers\nsudo rivulet peers -o wide",
	"peer":                "sudo rivulet peer lab-2\nsudo rivulet peer 192.0.2.7\nsudo rivulet peer lab-2 --provide=off\nsudo rivulet peer campus --price=5 --label=room=B12",
	"approve":             "sudo rivulet approve lab-2",
	"deny":                "sudo rivulet deny lab-2",
	"nodes":               "sudo rivulet nodes",
	"nodes upgrade":       "sudo rivulet nodes upgrade /media/usb/rivulet\nsudo rivulet nodes upgrade /media/usb/rivulet pi-3 --window 5m",
	"nodes standby":       "sudo rivulet nodes standby pi-2\nsudo rivulet nodes standby pi-2 --off",
	"nodes switch":        "sudo rivulet nodes switch",
	"nodes remove":        "sudo rivulet nodes remove pi-3\nsudo rivulet nodes remove pi-3 --force",
	"token create":        "sudo rivulet token create\nsudo rivulet token create --for 1h",
	"token list":          "sudo rivulet token list",
	"token revoke":        "sudo rivulet token revoke 3f2a",
	"join":                "sudo rivulet join TOKEN\nsudo rivulet join TOKEN --reset",
	"leave":               "sudo rivulet leave",
	"invite":              "sudo rivulet invite",
	"invite list":         "sudo rivulet invite list",
	"invite revoke":       "sudo rivulet invite revoke 3f2a",
	"broker":              "rivulet broker --state ~/rivulet-broker --host broker.example\nrivulet broker --listen :443 --host 192.0.2.9",
	"unpeer":              "sudo rivulet unpeer lab-2\nsudo rivulet unpeer lab-2 --force",
	"burst add":           "sudo rivulet burst add campus --kubeconfig campus.yaml --limits cpu=8,memory=16Gi,pods=40",
	"burst check":         "rivulet burst check --kubeconfig campus.yaml",
	"burst list":          "sudo rivulet burst list",
	"burst status":        "sudo rivulet burst status campus",
	"burst remove":        "sudo rivulet burst remove campus",
	"vcluster create":     "sudo rivulet vcluster create ann\nsudo rivulet vcluster create ann --sleep 10m --quota cpu=2,memory=4Gi,pods=20\nsudo rivulet vcluster create -f course.yaml",
	"course list":         "sudo rivulet course list",
	"course status":       "sudo rivulet course status db",
	"course report":       "sudo rivulet course report db\nsudo rivulet course report db -o csv > db.csv",
	"course sleep":        "sudo rivulet course sleep db",
	"course kubeconfigs":  "sudo rivulet course kubeconfigs db --dir class --role admin --for 20w",
	"course delete":       "sudo rivulet course delete db --yes",
	"vcluster list":       "sudo rivulet vcluster list",
	"vcluster describe":   "sudo rivulet vcluster describe ann",
	"vcluster connect":    "sudo rivulet vcluster connect ann -- kubectl get namespaces\nsudo rivulet vcluster connect ann --kubeconfig ann.yaml",
	"vcluster kubeconfig": "sudo rivulet vcluster kubeconfig ann > ann.kubeconfig\nsudo rivulet vcluster kubeconfig --all --dir class --role edit --for 8w\nsudo rivulet vcluster kubeconfig ann --user ben --role view --link",
	"vcluster sleep":      "sudo rivulet vcluster sleep ann",
	"vcluster pause":      "sudo rivulet vcluster pause ann",
	"vcluster resume":     "sudo rivulet vcluster resume ann",
	"vcluster set":        "sudo rivulet vcluster set ann --quota cpu=2,memory=4Gi,pods=20,storage=10Gi\nsudo rivulet vcluster set ann --sleep 10m",
	"vcluster snapshot":   "sudo rivulet vcluster snapshot ann ann.snapshot\nsudo rivulet vcluster snapshot ann ann.snapshot.age --passphrase-file words.txt",
	"vcluster restore":    "sudo rivulet vcluster restore ann.snapshot\nsudo rivulet vcluster restore ann.snapshot --as ben",
	"vcluster delete":     "sudo rivulet vcluster delete ann --yes\nsudo rivulet vcluster delete ann ben carl --yes",
	"vcluster logs":       "sudo rivulet vcluster logs ann\nsudo rivulet vcluster logs ann -f",
	"offload":             "sudo rivulet offload lab\nsudo rivulet offload lab --create --when remote --to lab-2",
	"unoffload":           "sudo rivulet unoffload lab",
	"pods":                "sudo rivulet pods\nsudo rivulet pods -n lab -o wide",
	"why":                 "sudo rivulet why lab/web-7c9\nsudo rivulet why deploy/web -n lab\nsudo rivulet why peer/lab-2",
	"trace":               "sudo rivulet trace web -n lab\nsudo rivulet trace lab/web:80 --from lab/client\nsudo rivulet trace pod/web-0 -n lab",
	"cordon":              "sudo rivulet cordon lab-2",
	"uncordon":            "sudo rivulet uncordon lab-2",
	"drain":               "sudo rivulet drain lab-2\nsudo rivulet drain lab-2 --timeout 10m",
	"move volume":         "sudo rivulet move volume lab/data lab-2\nsudo rivulet move volume lab/data home",
	"volumes":             "sudo rivulet volumes",
	"volumes adopt":       "sudo rivulet volumes adopt lab-2/lab/db-1a2b3c4d\nsudo rivulet volumes adopt lab-2/lab/db-1a2b3c4d --as db-old",
	"volumes delete":      "sudo rivulet volumes delete lab-2/lab/db-1a2b3c4d",
	"services":            "sudo rivulet services",
	"tenants":             "sudo rivulet tenants",
	"tenants remove":      "sudo rivulet tenants remove lab-2",
	"open":                "sudo rivulet open lab --to lab-2\nsudo rivulet open lab/web --to all",
	"close":               "sudo rivulet close lab/web",
	"image push":          "sudo rivulet image push web.tar\nsudo rivulet image push ./layout --name shop/web:3 --all",
	"image list":          "sudo rivulet image list\nsudo rivulet image list -o wide",
	"image rm":            "sudo rivulet image rm shop/web:2\nsudo rivulet image rm --unused",
	"backup":              "sudo rivulet backup cluster.backup\nsudo rivulet backup - --volumes | ssh HOST 'cat > cluster.backup'",
	"restore":             "sudo rivulet restore cluster.backup",
	"upgrade":             "sudo rivulet upgrade rivulet-v1.2.0-linux-arm64.zst",
	"reset":               "sudo rivulet reset",
	"support":             "sudo rivulet support\nsudo rivulet support -o - | ssh HOST 'cat > support.tar.gz'",
	"metrics":             "sudo rivulet metrics",
	"metrics grant":       "sudo rivulet metrics grant prometheus --dir /etc/prometheus\nsudo rivulet metrics grant grafana-agent --certificate --server 192.0.2.7 > scrape.yml",
	"metrics list":        "sudo rivulet metrics list",
	"metrics revoke":      "sudo rivulet metrics revoke prometheus",
	"rotate-key":          "sudo rivulet rotate-key",
	"flash":               "sudo rivulet flash --list\nsudo rivulet flash rivulet-v1.2.0-arm64.img.zst /dev/sdX --name lab-1\nsudo rivulet flash rivulet-v1.2.0-arm64.img.zst /dev/sdX --config rivulet.yaml",
	"firstboot":           "sudo rivulet firstboot",
	"end-pods":            "sudo rivulet end-pods",
	"console":             "sudo rivulet console",
	"console login":       "sudo rivulet console login\nsudo rivulet console login --role view",
	"console list":        "sudo rivulet console list",
	"console end":         "sudo rivulet console end 5f0c91aa\nsudo rivulet console end --all",
	"kubectl":             "sudo rivulet kubectl get pods --all-namespaces -o wide",
	"ctr":                 "sudo rivulet ctr images list",
	"crictl":              "sudo rivulet crictl ps",
	"version":             "rivulet version",
	"kubeconfig":          "sudo rivulet kubeconfig > laptop.yaml\nsudo rivulet kubeconfig --user anna --for 90d --namespace lab --role edit > anna.yaml",
	"kubeconfig list":     "sudo rivulet kubeconfig list",
	"kubeconfig revoke":   "sudo rivulet kubeconfig revoke anna\nsudo rivulet kubeconfig revoke ben --vcluster ann",
	"licenses":            "rivulet licenses | less",
	"docs":                "rivulet docs\nrivulet docs quick-start | less",
}

// helpTemplate has the purpose first, then details, then usage.
const helpTemplate = `{{.Short | sentence}}{{with .Long}}

{{. | trimTrailingWhitespaces}}{{end}}

{{if or .Runnable .HasSubCommands}}{{.UsageString}}{{end}}`

// arrange sets groups and examples, and puts the purpose of each verb first.
func arrange(root *cobra.Command) {
	cobra.AddTemplateFunc("sentence", sentence)
	root.SetHelpTemplate(helpTemplate)
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
	}
	for _, cmd := range root.Commands() {
		for _, g := range groups {
			if slices.Contains(g.verbs, cmd.Name()) {
				cmd.GroupID = g.title
			}
		}
	}
	each(root, func(cmd *cobra.Command) {
		if text, ok := examples[path(cmd)]; ok {
			cmd.Example = "  " + strings.ReplaceAll(text, "\n", "\n  ")
		}
	})
}

// each visits the verbs below a command.
func each(cmd *cobra.Command, visit func(*cobra.Command)) {
	for _, sub := range cmd.Commands() {
		visit(sub)
		each(sub, visit)
	}
}

// path is what follows rivulet.
func path(cmd *cobra.Command) string {
	_, rest, _ := strings.Cut(cmd.CommandPath(), " ")
	return rest
}

// sentence converts a purpose to a sentence.
func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}
