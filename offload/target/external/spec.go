package external

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"

	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// Spec describes the target for consumer.Consumer. cfg's Node and Log are set later.
func Spec(cfg Config) (target.Spec, error) {
	if err := cfg.Settings.Complete(); err != nil {
		return target.Spec{}, err
	}
	key, err := json.Marshal(struct {
		Settings   Settings
		Kubeconfig string
	}{cfg.Settings, string(cfg.Credential.Kubeconfig)})
	if err != nil {
		return target.Spec{}, fmt.Errorf("burst: %w", err)
	}
	sum := sha256.Sum256(key) // not the credential itself
	id := cmp.Or(cfg.ID, ID(cfg.Credential.Server, cfg.Settings.Namespace))
	return target.Spec{
		ID: id, Name: "burst-" + cfg.Settings.Name, Short: strings.TrimPrefix(id, "burst.")[:6], Kind: Kind,
		Labels: map[string]string{policy.PriceLabel: cfg.Settings.Price},
		After:  cfg.Settings.Order == OrderLast, HomeAPI: cfg.Settings.Network != NetworkNone,
		Key: hex.EncodeToString(sum[:]),
		New: func(name string, log *slog.Logger) (target.Target, error) {
			cfg := cfg
			cfg.Node, cfg.Log = name, log
			return New(cfg)
		},
	}, nil
}
