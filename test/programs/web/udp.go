package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// serveUDP answers each datagram with what it says, who answers and who asked.
func serveUDP(name string) error {
	c, err := net.ListenPacket("udp", ":8080")
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				continue // an ICMP error about something sent
			}
			client, _, _ := net.SplitHostPort(from.String())
			said, _ := json.Marshal(Answer{Pod: name, Client: client}) // it can always be
			c.WriteTo(append(append(buf[:n:n], ' '), said...), from)
		}
	}()
	return nil
}

// udp asks until there is an answer: a datagram may be lost.
func udp(args []string) error {
	if len(args) != 2 {
		return errors.New("udp takes an address and a text")
	}
	var last error
	for range 10 {
		said, err := askUDP(args[0], args[1])
		if err == nil {
			fmt.Println(said)
			return nil
		}
		last = err
	}
	return last
}

func askUDP(addr, text string) (string, error) {
	c, err := net.Dial("udp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	c.SetReadDeadline(time.Now().Add(time.Second))
	buf := make([]byte, 64<<10)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}
