package main

import (
	"context"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/mainjob"
)

// faults are played one after another, each on a shop that has settled.
func (p *pilot) faults(ctx context.Context) error {
	off, err := p.withoutStore(ctx)
	if err != nil {
		return err
	}
	for _, f := range []fault{
		{name: "a and b cut apart", lasting: p.lasting, target: p.target, begin: p.cut, undo: p.healed, mend: p.whole},
		{name: "home's gateway killed", lasting: p.lasting, target: p.target, begin: p.gatewayKilled, mend: p.whole},
		{name: "device " + off.Name + " switched off", lasting: p.lasting, target: p.target, begin: func(ctx context.Context) error {
			p.tell("the power of %s is cut", off.Name)
			return off.Kill(ctx, "power")
		}, mend: func(ctx context.Context) error {
			p.tell("%s is switched on again", off.Name)
			return errors.Join(off.Start(ctx), p.whole(ctx))
		}},
		{name: "b drained", lasting: p.lasting, begin: p.drained, mend: p.back},
	} {
		if err := p.measure(ctx, f); err != nil {
			return err
		}
	}
	return p.table()
}

// cut separates all devices of a from all of b.
func (p *pilot) cut(context.Context) error {
	p.tell("all cables between a and b are cut")
	for _, near := range p.devices {
		for _, far := range p.devices {
			if strings.HasPrefix(near.Name, "a") && strings.HasPrefix(far.Name, "b") {
				if err := p.lab.Cut(near.Name, far.Name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (p *pilot) healed(context.Context) error {
	p.tell("the cables are in again")
	return p.lab.Heal()
}

func (p *pilot) gatewayKilled(ctx context.Context) error {
	p.tell("SIGKILL to the tunnel of a, through which all traffic of away pods and of its workers goes")
	return p.home.Kill(ctx, "tunnel")
}

func (p *pilot) drained(ctx context.Context) error {
	p.tell("rivulet drain b --yes")
	out, err := p.home.Run(ctx, "rivulet", "drain", "b", "--yes")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	p.tell("%s", lines[len(lines)-1])
	return nil
}

// back lets pods go to b again.
func (p *pilot) back(ctx context.Context) error {
	pods, err := p.pods(ctx)
	if err != nil {
		return err
	}
	p.tell("of the shop run: %s; the rest waits for room. rivulet uncordon b", counted(mainjob.Where(pods)))
	if _, err := p.home.Run(ctx, "rivulet", "uncordon", "b"); err != nil {
		return err
	}
	return p.whole(ctx)
}

// whole waits until all pods of the shop are ready.
func (p *pilot) whole(ctx context.Context) error {
	_, err := p.ready(ctx, shopPods)
	return err
}

// withoutStore is a device, not a server, that has pods of the shop and none of its stores.
func (p *pilot) withoutStore(ctx context.Context) (*lab.Device, error) {
	pods, err := p.pods(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range p.devices {
		if !strings.HasPrefix(d.Name, "a") || d == p.home {
			continue
		}
		var services, stores int
		for i := range pods {
			if pods[i].Spec.NodeName == d.Name {
				count(&pods[i], &services, &stores)
			}
		}
		if services > 0 && stores == 0 {
			return d, nil
		}
	}
	return p.lab.Device("b1")
}

func count(pod *corev1.Pod, services, stores *int) {
	if pod.Labels["shop"] == "store" {
		*stores++
	} else {
		*services++
	}
}
