package cli

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"rivulet/appliance/config"
	"rivulet/appliance/engine/controlplane"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/offload/nodeagent/podgate"
)

// settings are the parts of the configuration in flags and environment; a flag's default is the environment.
type settings struct {
	path, name, reserveCPU, reserveMemory string
}

// setting is one value that overrides the file.
type setting struct {
	key, flag, env string
	value          *string
}

func (s *settings) all() []setting {
	return []setting{
		{"name", "name", "RIVULET_NAME", &s.name},
		{"reserve.cpu", "reserve-cpu", "RIVULET_RESERVE_CPU", &s.reserveCPU},
		{"reserve.memory", "reserve-memory", "RIVULET_RESERVE_MEMORY", &s.reserveMemory},
	}
}

// pathFlag adds --config.
func (s *settings) pathFlag(f *pflag.FlagSet) {
	f.StringVar(&s.path, "config", env("RIVULET_CONFIG", config.DefaultPath), "the configuration file [$RIVULET_CONFIG]")
}

func (s *settings) flags(f *pflag.FlagSet) {
	s.pathFlag(f)
	usage := map[string]string{
		"name":           "name of this cluster for its peers; default: the host name at the first start. The node keeps its first name",
		"reserve.cpu":    "CPU kept from pods, for example 500m",
		"reserve.memory": "memory kept from pods, for example 1Gi",
	}
	for _, q := range s.all() {
		f.StringVar(q.value, q.flag, os.Getenv(q.env), usage[q.key]+" [$"+q.env+"]")
	}
}

// check checks the user's values before any change. A value may also be from the environment; the error names both.
func (s *settings) check(source config.Source) error {
	for _, q := range s.all() {
		if *q.value == "" || q.key == "name" {
			continue
		}
		if v, err := resource.ParseQuantity(*q.value); err != nil || v.Sign() < 0 {
			example := map[string]string{"reserve.cpu": "500m", "reserve.memory": "1Gi"}[q.key]
			return usagef("--%s (or %s): %q is not a quantity; write for example --%s %s; see: rivulet run --help", q.flag, q.env, *q.value, q.flag, example)
		}
	}
	if err := config.CheckName(s.name); err != nil {
		return usagef("--name (or RIVULET_NAME): %w; see: rivulet run --help", err)
	}
	for _, p := range source.Load(time.Now()).Problems {
		if strings.HasPrefix(p.File, "$") {
			return usagef("%w", p)
		}
	}
	return nil
}

// others are the variables that set no key, or that are a flag's default.
func (s *settings) others() []string {
	out := []string{"RIVULET_CONFIG", "RIVULET_STATE", "RIVULET_RUNTIME", podgate.Env, upgrade.TrialEnv, controlplane.Env}
	for _, q := range s.all() {
		out = append(out, q.env)
	}
	return out
}

// source is the source of the configuration.
func (s *settings) source(f *pflag.FlagSet) (config.Source, error) {
	variables, err := config.Environment(os.Environ(), s.others())
	if err != nil {
		return config.Source{}, usagef("%w", err)
	}
	src := config.Source{Env: variables, Path: s.path, Named: f.Changed("config") || os.Getenv("RIVULET_CONFIG") != ""}
	if abs, err := filepath.Abs(s.path); err == nil {
		src.Path = abs // it is read again, possibly in another working folder
	}
	for _, q := range s.all() {
		if *q.value == "" {
			continue
		}
		origin := config.Origin{Kind: "environment", Name: q.env}
		if f.Changed(q.flag) {
			origin = config.Origin{Kind: "flag", Name: "--" + q.flag}
		}
		src.Over = append(src.Over, config.Override{Key: q.key, Value: *q.value, Origin: origin})
	}
	return src, nil
}
