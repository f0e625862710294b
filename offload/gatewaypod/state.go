package gatewaypod

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/changes"
	"rivulet/fabric/gateway/gatewayproto"
)

// configKey is the Secret's key, and the file in the pod.
const configKey = "config.json"

// load reads the state from the Secret, or starts with an empty one.
func (g *Gateway) load(ctx context.Context) error {
	secret, err := g.campus.CoreV1().Secrets(g.cfg.Namespace).Get(ctx, g.name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("gateway: read Secret %s: %w", g.name, err)
	}
	var was gatewayproto.Gateway
	if err == nil {
		if !g.ours(secret) {
			return fmt.Errorf("gateway: there is a Secret %s that is not ours: remove it, or use another namespace", g.name)
		}
		if err := json.Unmarshal(secret.Data[configKey], &was); err != nil {
			g.log.Warn("what the Secret says is lost; the gateway begins anew", "err", err)
			was = gatewayproto.Gateway{}
		}
	}
	private, public, err := keyPair(was.PrivateKey)
	if err != nil {
		return err
	}
	prefix, err := g.cfg.Fabric.GatewayPrefix(g.cfg.Name, was.Prefix)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	if prefix != was.Prefix {
		was.Pods = nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	was.PrivateKey, was.Prefix, was.Address = private, prefix, ownAddress(prefix)
	g.table = newTable(prefix, was.Address, was.Pods, time.Now())
	g.services = map[string]gatewayproto.Service{}
	for _, s := range was.Services {
		g.services[s.Namespace+"/"+s.Name] = s
	}
	// Newer than everything that the pod has received, also if an earlier run did not save its last change.
	was.Generation = max(was.Generation+1000, time.Now().Unix())
	g.want = was
	g.renew()
	g.cfg.Fabric.SetGateway(g.cfg.Name, public, prefix)
	g.subs.Notify()
	return nil
}

// keyPair returns the key if it is valid, otherwise a new one.
func keyPair(private string) (priv, public string, err error) {
	raw, err := base64.StdEncoding.DecodeString(private)
	key, err2 := ecdh.X25519().NewPrivateKey(raw)
	if err != nil || err2 != nil {
		if key, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			return "", "", fmt.Errorf("gateway: %w", err)
		}
	}
	return base64.StdEncoding.EncodeToString(key.Bytes()), base64.StdEncoding.EncodeToString(key.PublicKey().Bytes()), nil
}

// savePause collects changes into one write; the pod receives each at once, over its control port.
const savePause = 2 * time.Second

// save keeps the Secret up to date.
func (g *Gateway) save(ctx context.Context) error {
	news, stop := g.news.Changed()
	defer stop()
	for {
		if err := g.write(ctx); err != nil {
			g.problem("secret", err)
			return err
		}
		g.problem("secret", nil)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-news:
		}
		changes.Wait(ctx, savePause)
	}
}

func (g *Gateway) wanted() gatewayproto.Gateway {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.want
}

// write writes the Secret if it differs.
func (g *Gateway) write(ctx context.Context) error {
	raw, err := json.Marshal(g.wanted())
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	secrets := g.campus.CoreV1().Secrets(g.cfg.Namespace)
	want := &corev1.Secret{ObjectMeta: g.meta(g.name), Data: map[string][]byte{configKey: raw}}
	have, err := secrets.Get(ctx, g.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = secrets.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && !g.ours(have):
		return fmt.Errorf("gateway: there is a Secret %s that is not ours: remove it, or use another namespace", g.name)
	case err == nil && string(have.Data[configKey]) != string(raw):
		have = have.DeepCopy()
		have.Data = want.Data
		_, err = secrets.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("gateway: write Secret %s: %w", g.name, err)
	}
	return nil
}

func sorted(services map[string]gatewayproto.Service) (out []gatewayproto.Service) {
	for _, key := range slices.Sorted(maps.Keys(services)) {
		out = append(out, services[key])
	}
	return out
}

func equal(a, b gatewayproto.Gateway) bool {
	a.Generation, b.Generation = 0, 0
	if len(a.Pods) == 0 && len(b.Pods) == 0 {
		a.Pods, b.Pods = nil, nil
	}
	if len(a.Services) == 0 && len(b.Services) == 0 {
		a.Services, b.Services = nil, nil
	}
	return reflect.DeepEqual(a, b)
}
