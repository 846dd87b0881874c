// Numbered values to every partition, several batches in flight, until standard input ends.
//
// Arguments: bootstrap, topic, name, partitions, records a second, records without an answer at
// most, records of a transaction or 0, and the group that each transaction commits an offset of,
// or "". Prints a JSON object now and then, and when everything is answered.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type report struct {
	Sent         int64    `json:"sent"`
	Acked        int64    `json:"acked"`
	Transactions int64    `json:"transactions"`
	Errors       []string `json:"errors"`
}

type writer struct {
	client         *kgo.Client
	topic, name    string
	group          string
	partitions     int
	perTransaction int
	room           chan struct{}
	acked          atomic.Int64
	lock           sync.Mutex
	report         report
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	w := &writer{
		topic:          os.Args[2],
		name:           os.Args[3],
		partitions:     number(os.Args[4]),
		room:           make(chan struct{}, number(os.Args[6])),
		perTransaction: number(os.Args[7]),
		group:          os.Args[8],
		report:         report{Errors: []string{}},
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(os.Args[1]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchMaxBytes(2000),
		kgo.ProducerOnDataLossDetected(func(topic string, partition int32) {
			w.fail(fmt.Sprintf("data loss in %s-%d", topic, partition))
		}),
	}
	if w.perTransaction > 0 {
		options = append(options, kgo.TransactionalID(w.name))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	w.client = client
	w.run(float64(number(os.Args[5])))
}

func (w *writer) run(rate float64) {
	stop := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	began, next := time.Now(), 0
	for {
		select {
		case <-stop:
			if err := w.client.Flush(context.Background()); err != nil {
				w.fail(err.Error())
			}
			w.print()
			w.client.Close()
			return
		default:
		}
		if w.perTransaction > 0 {
			w.note(w.client.BeginTransaction())
		}
		for end := next + max(10, w.perTransaction/w.partitions); next < end; next++ {
			for partition := 0; partition < w.partitions; partition++ {
				w.send(partition, next)
			}
		}
		if w.perTransaction > 0 {
			w.note(w.client.Flush(context.Background()))
			if w.group != "" {
				w.note(w.commitOffset(int64(next)))
			}
			w.note(w.client.EndTransaction(context.Background(), kgo.TryCommit))
			w.report.Transactions++
		}
		w.print()
		due := began.Add(time.Duration(float64(w.report.Sent) * 1e9 / rate))
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		} else {
			began = began.Add(-wait)
		}
	}
}

func (w *writer) send(partition, number int) {
	text := fmt.Sprintf("%-100s", fmt.Sprintf("%s|%d|%d|", w.name, partition, number))
	w.room <- struct{}{}
	w.report.Sent++
	record := &kgo.Record{Topic: w.topic, Partition: int32(partition), Value: []byte(text)}
	w.client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
		<-w.room
		if err == nil {
			w.acked.Add(1)
		} else {
			w.fail(err.Error())
		}
	})
}

// As somebody who commits for a group without being in it. In Kafka 4 the offset needs no
// AddOffsetsToTxn before it (KIP-890).
func (w *writer) commitOffset(offset int64) error {
	id, epoch, err := w.client.ProducerID(context.Background())
	if err != nil {
		return err
	}
	request := kmsg.NewPtrTxnOffsetCommitRequest()
	request.TransactionalID, request.Group = w.name, w.group
	request.ProducerID, request.ProducerEpoch, request.Generation = id, epoch, -1
	partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	partition.Offset = offset
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topic.Topic = w.topic
	topic.Partitions = append(topic.Partitions, partition)
	request.Topics = append(request.Topics, topic)
	for {
		response, err := request.RequestWith(context.Background(), w.client)
		if err != nil {
			return err
		}
		err = kerr.ErrorForCode(response.Topics[0].Partitions[0].ErrorCode)
		if !kerr.IsRetriable(err) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *writer) note(err error) {
	if err != nil {
		w.fail(err.Error())
	}
}

func (w *writer) fail(text string) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.report.Errors = append(w.report.Errors, text)
}

func (w *writer) print() {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.report.Acked = w.acked.Load()
	text, err := json.Marshal(w.report)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}
